// SPDX-License-Identifier: Apache-2.0
// The header of a .npy file (numpy.lib.format), which describes the data after it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace smartmem::run {

struct NpyHeader {
  std::string code;  // "<f4": byte order, kind, bytes of a number
  bool fortran = false;
  std::vector<int64_t> shape;
  size_t size = 0;  // of the header itself

  bool big_endian() const { return code[0] == '>'; }
};

// Limit of a header's size in bytes; numpy's own have some hundred bytes.
inline constexpr size_t kMostHeader = 1 << 16;

// Returns nothing if the file does not begin with a header of numpy.
std::optional<NpyHeader> ParseHeader(const char* data, size_t bytes);

// Returns a header for numbers of this code, padded so that the data begins at a multiple of 64 bytes.
std::string MakeHeader(const std::string& code, const std::vector<int64_t>& shape);

}  // namespace smartmem::run
