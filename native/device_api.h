// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/runtime/device_api.h>

#include <memory>
#include <string>

#include "memory.h"

namespace smartmem::opencl {

// The device that TVM set for this thread; TVM's host code sets it before every launch.
int CurrentDevice();

// Allocates the memory of one tensor: a buffer, or an image for a texture scope.
std::unique_ptr<Memory> Allocate(int device_index, int ndim, const int64_t* shape, DLDataType dtype,
                                 const std::string& scope);

}  // namespace smartmem::opencl
