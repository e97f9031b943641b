// SPDX-License-Identifier: Apache-2.0
// What a driver says about a program that it does not build, and where.
#pragma once

#include <string>

#include "device.h"

namespace smartmem::opencl {

std::string BuildLog(const Device& device, cl_program program);

// The source lines that the errors in a log name, each with its neighbours, numbered; empty if
// the log names none.
std::string LinesNamed(const std::string& log, const std::string& code);

}  // namespace smartmem::opencl
