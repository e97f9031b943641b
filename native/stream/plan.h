// SPDX-License-Identifier: Apache-2.0
// The plan: source, destination and time of each load, and the places of tensors.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/string.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace smartmem::stream {

struct Load {
  int64_t file_offset, bytes, arena_offset;
  int64_t after;  // the step that has to end before, -1 for none
  int64_t step;   // the step that reads it
  bool pinned;    // loaded once and kept for all inferences
};

struct Plan {
  // Throws a ValueError that names the wrong load or tensor. `loads` has six numbers for each load, in Load's order.
  Plan(int64_t file_bytes, int64_t arena_bytes, const tvm::ffi::Shape& offsets, const tvm::ffi::Shape& loads,
       const tvm::ffi::Array<tvm::ffi::String>& names, int64_t patience_ms);

  int64_t arena_bytes;
  std::vector<int64_t> offsets;  // of tensors in the arena
  std::vector<Load> loads;
  std::vector<std::string> names;  // of the layers that read the loads
  std::vector<size_t> order;       // in which they are loaded: pinned ones first
  size_t pinned = 0;               // number of pinned loads
  std::chrono::milliseconds patience;
};

// Steps are recorded with their times: a wrong number must not allocate all memory.
inline constexpr int64_t kMostSteps = 1 << 24;

}  // namespace smartmem::stream
