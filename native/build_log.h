// SPDX-License-Identifier: Apache-2.0
// The driver's log about a program that it cannot build, and the source lines that the log names.
#pragma once

#include <string>

#include "device.h"

namespace smartmem::opencl {

std::string BuildLog(const Device& device, cl_program program);

// Returns the source lines that the errors in a log name, numbered, each with the line before and
// after it; empty if the log names none.
std::string LinesNamed(const std::string& log, const std::string& code);

}  // namespace smartmem::opencl
