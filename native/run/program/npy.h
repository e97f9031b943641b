// SPDX-License-Identifier: Apache-2.0
// Files of one array: numpy's format, versions 1 to 3, and numbers alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "smartmem_run.h"

namespace smartmem::run {

// The bytes that an input takes; a file that does not end in .npy has nothing else in it. Throws a `Mistake` if there
// is no such file, or one of another type, shape or size.
std::vector<char> ReadArray(const std::string& path, const smartmem_run_tensor& input);

// Writes a .npy file, to another name first. Throws a `Mistake` if it cannot.
void WriteArray(const std::string& path, const smartmem_run_tensor& output, const std::vector<char>& data);

}  // namespace smartmem::run
