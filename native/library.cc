// SPDX-License-Identifier: Apache-2.0
#include "library.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

#include <cstdlib>

namespace smartmem::opencl {
namespace {

constexpr const char* kDefaultLibrary = "libOpenCL.so.1";

struct Library {
  Api api;
  std::string problem;

  Library() {
    const char* chosen = std::getenv("SMARTMEM_OPENCL_LIBRARY");
    const char* name = chosen != nullptr && *chosen != '\0' ? chosen : kDefaultLibrary;
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      problem = std::string("the OpenCL library ") + name + " cannot be opened (" + why + "): " +
                (name == chosen ? "correct SMARTMEM_OPENCL_LIBRARY."
                                : "install the device's OpenCL driver; for this machine's CPU "
                                  "`apt-get install pocl-opencl-icd ocl-icd-libopencl1`.");
      return;
    }
#define SMARTMEM_CL_LOOKUP(type, function, parameters) Lookup(handle, name, #function, &api.function);
    SMARTMEM_CL_FUNCTIONS(SMARTMEM_CL_LOOKUP)
#undef SMARTMEM_CL_LOOKUP
  }

  template <typename F>
  void Lookup(void* handle, const char* library, const char* function, F* pointer) {
    *pointer = reinterpret_cast<F>(dlsym(handle, function));
    if (*pointer == nullptr && problem.empty()) {
      problem = std::string("the OpenCL library ") + library + " has no function " + function +
                ": OpenCL 1.2 is needed, install a newer driver.";
    }
  }
};

// Never destroyed: drivers have threads and exit handlers of their own, and TVM objects that
// hold driver objects may outlive static destruction.
const Library& TheLibrary() {
  static const Library* library = new Library();
  return *library;
}

}  // namespace

const std::string& LibraryProblem() { return TheLibrary().problem; }

const Api& Cl() {
  const Library& library = TheLibrary();
  if (!library.problem.empty()) [[unlikely]] {
    TVM_FFI_THROW(RuntimeError) << library.problem;
  }
  return library.api;
}

std::string ErrorName(cl_int code) {
  switch (code) {
#define SMARTMEM_CL_CASE(name, value) \
  case value:                         \
    return #name;
    SMARTMEM_CL_ERRORS(SMARTMEM_CL_CASE)
#undef SMARTMEM_CL_CASE
    default:
      return "OpenCL error " + std::to_string(code);
  }
}

void Check(cl_int code, const std::string& call) {
  if (code == CL_SUCCESS) return;
  TVM_FFI_THROW(RuntimeError) << call << " failed: " << ErrorName(code) << ".";
}

}  // namespace smartmem::opencl
