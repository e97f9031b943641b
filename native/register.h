// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

namespace smartmem::opencl {

// False in a second copy of this library, or beside a TVM with OpenCL of its own: registering a
// name twice would end the process. Read by every file's static block, before any registers.
inline const bool first_opencl = !tvm::ffi::Function::GetGlobal("device_api.opencl").has_value();

}  // namespace smartmem::opencl
