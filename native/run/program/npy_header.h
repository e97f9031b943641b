// SPDX-License-Identifier: Apache-2.0
// The head of a .npy file (numpy.lib.format): what the bytes behind it are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace smartmem::run {

struct NpyHeader {
  std::string code;  // "<f4": order of bytes, kind, bytes of a number
  bool fortran = false;
  std::vector<int64_t> shape;
  size_t size = 0;  // of the head itself

  bool big_endian() const { return code[0] == '>'; }
};

// The most that a head may take; numpy's own have some hundred bytes.
inline constexpr size_t kMostHeader = 1 << 16;

// Nothing if the file does not begin with a head as numpy writes one.
std::optional<NpyHeader> ParseHeader(const char* data, size_t bytes);

// A head for numbers of this code, with spaces so that they begin at a multiple of 64 bytes.
std::string MakeHeader(const std::string& code, const std::vector<int64_t>& shape);

}  // namespace smartmem::run
