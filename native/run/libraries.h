// SPDX-License-Identifier: Apache-2.0
// Loads the shared libraries that a model needs besides TVM's runtime, and the model's own.
#pragma once

#include <sys/types.h>
#include <tvm/ffi/extra/module.h>

#include <memory>
#include <string>

#include "manifest.h"

namespace smartmem::run {

// Opens the libraries beside this one that the model calls: that of OpenCL or of streamed weights, and throws if one is
// missing; and the pool of threads if it is present.
void OpenLibraries(const Manifest& manifest);

// The code of a model, loaded once however many models use it: a library has a single variable in which its kernels
// find their module.
class Code {
 public:
  static std::shared_ptr<Code> Open(const std::string& path);

  explicit Code(const std::string& path);
  const tvm::ffi::Module& module() const { return module_; }

 private:
  tvm::ffi::Module module_;
};

}  // namespace smartmem::run
