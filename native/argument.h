// SPDX-License-Identifier: Apache-2.0
// One argument of a kernel: a memory object or a number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cl.h"

namespace smartmem::opencl {

// The bytes of the argument's declared type, and an id that is equal for equal arguments.
struct Argument {
  union {
    cl_mem memory;
    int64_t integer;  // little-endian: a narrower type is its first bytes
    double number;
    float single;
  };
  size_t bytes;
  uint64_t id;
  bool is_object;
};

}  // namespace smartmem::opencl
