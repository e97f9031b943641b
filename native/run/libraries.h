// SPDX-License-Identifier: Apache-2.0
// The shared libraries that a model needs besides TVM's runtime, and its own.
#pragma once

#include <sys/types.h>
#include <tvm/ffi/extra/module.h>

#include <memory>
#include <string>

#include "manifest.h"

namespace smartmem::run {

// Opens what the model calls: OpenCL's library or that of streamed weights, which lie beside this one, and throws if one
// is not there; the pool of threads where it is there.
void OpenLibraries(const Manifest& manifest);

// The code of a model. It is loaded once however often it is asked for: a library has one place where its kernels find
// the module that they are in.
class Code {
 public:
  static std::shared_ptr<Code> Open(const std::string& path);

  explicit Code(const std::string& path);
  const tvm::ffi::Module& module() const { return module_; }

 private:
  tvm::ffi::Module module_;
};

}  // namespace smartmem::run
