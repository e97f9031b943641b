// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

namespace smartmem::opencl {

// False in a second copy of this library, or beside a TVM with OpenCL of its own: registering a
// name twice would end the process. Every file's static block asks before it registers; a
// function, because those run before the library's variables are initialised.
inline bool FirstOpenCL() {
  static const bool first = !tvm::ffi::Function::GetGlobal("device_api.opencl").has_value();
  return first;
}

}  // namespace smartmem::opencl
