// SPDX-License-Identifier: Apache-2.0
// Files of one array: numpy's format, versions 1 to 3, or raw numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "smartmem_run.h"

namespace smartmem::run {

// Reads the bytes of an input; a file whose name does not end in .npy holds only those. Throws a `Mistake` if the file
// is missing or has another type, shape or size.
std::vector<char> ReadArray(const std::string& path, const smartmem_run_tensor& input);

// Returns the shape that a .npy file states; nothing for a file of raw numbers, or one that `ReadArray` refuses.
std::optional<std::vector<int64_t>> ShapeInFile(const std::string& path);

// Writes a .npy file, first under a temporary name. Throws a `Mistake` if that fails.
void WriteArray(const std::string& path, const smartmem_run_tensor& output, const std::vector<char>& data);

}  // namespace smartmem::run
