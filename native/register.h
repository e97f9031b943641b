// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

namespace smartmem::opencl {

// Whether this is the first OpenCL runtime of the process: not in a second copy of this library, or
// beside a TVM with OpenCL of its own. Registering a name twice would end the process, so every file's
// static block checks this first. It is a function, because static blocks run before the library's
// variables are initialised.
inline bool FirstOpenCL() {
  static const bool first = !tvm::ffi::Function::GetGlobal("device_api.opencl").has_value();
  return first;
}

}  // namespace smartmem::opencl
