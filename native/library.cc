// SPDX-License-Identifier: Apache-2.0
#include "library.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <vector>

#include "environment.h"
#include "register.h"

namespace smartmem::opencl {
namespace {

#if defined(__ANDROID__)
constexpr const char* kSystemLoader = "libOpenCL.so";
#else
constexpr const char* kSystemLoader = "libOpenCL.so.1";
#endif

// The file of the driver of the extra [pocl]; empty without it. _smartmem_opencl.py sets it when the package is loaded.
std::string& ExtraDriver() {
  static auto* driver = new std::string();
  return *driver;
}

using GetPlatformIds = decltype(Api::clGetPlatformIDs);

struct Library {
  std::string file;
  void* handle = nullptr;
  Api api;
  std::string problem;

  explicit Library(const std::string& name) : file(name) {
    handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      problem = "the OpenCL library " + name + " cannot be opened (" + why + "): " + Remedy();
    } else if (GetPlatformIds platforms = PlatformsOfDriver(handle)) {
      TakeTable(platforms);
    } else {
#define SMARTMEM_CL_LOOKUP(index, type, function, parameters) Lookup(handle, #function, &api.function);
      SMARTMEM_CL_FUNCTIONS(SMARTMEM_CL_LOOKUP)
#undef SMARTMEM_CL_LOOKUP
    }
  }

  bool HasDevice() const {
    cl_uint count = 0;
    if (!problem.empty() || api.clGetPlatformIDs(0, nullptr, &count) != CL_SUCCESS || count == 0) return false;
    std::vector<cl_platform_id> platforms(count);
    if (api.clGetPlatformIDs(count, platforms.data(), nullptr) != CL_SUCCESS) return false;
    return std::any_of(platforms.begin(), platforms.end(), [&](cl_platform_id platform) {
      return api.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) == CL_SUCCESS && count > 0;
    });
  }

 private:
  std::string Remedy() const {
    if (file == kSystemLoader) return std::string("install the device's OpenCL driver; ") + kInstallCpuDriver;
    if (file == ExtraDriver()) return "`pip install --force-reinstall --no-deps pocl-binary-distribution`.";
    return "correct SMARTMEM_OPENCL_LIBRARY.";
  }

  template <typename F>
  void Lookup(void* handle, const char* function, F* pointer) {
    *pointer = reinterpret_cast<F>(dlsym(handle, function));
    if (*pointer == nullptr && problem.empty()) {
      problem = "the OpenCL library " + file + " has no function " + function +
                ": OpenCL 1.2 is needed, install a newer driver.";
    }
  }

  // Returns the function that a driver without a loader exports (cl_khr_icd); null for a loader.
  static GetPlatformIds PlatformsOfDriver(void* handle) {
    if (dlsym(handle, "clGetPlatformIDs") != nullptr) return nullptr;
    const auto address = reinterpret_cast<void* (*)(const char*)>(dlsym(handle, "clGetExtensionFunctionAddress"));
    return address == nullptr ? nullptr : reinterpret_cast<GetPlatformIds>(address("clIcdGetPlatformIDsKHR"));
  }

  // Every object of a driver begins with the address of its dispatch table.
  void TakeTable(GetPlatformIds platforms) {
    api.clGetPlatformIDs = platforms;
    cl_platform_id platform = nullptr;
    if (platforms(1, &platform, nullptr) != CL_SUCCESS || platform == nullptr) return;
    void* const* table = *reinterpret_cast<void* const* const*>(platform);
#define SMARTMEM_CL_TAKE(index, type, function, parameters) \
  api.function = reinterpret_cast<decltype(api.function)>(table[index]);
    SMARTMEM_CL_FUNCTIONS(SMARTMEM_CL_TAKE)
#undef SMARTMEM_CL_TAKE
    api.clGetPlatformIDs = platforms;
  }
};

const Library* FirstWithDevice() {
  const std::string chosen = Environment("SMARTMEM_OPENCL_LIBRARY");
  if (!chosen.empty()) return new Library(chosen);
  const auto* system = new Library(kSystemLoader);
  return ExtraDriver().empty() || system->HasDevice() ? system : new Library(ExtraDriver());
}

// The library is never destroyed: drivers have threads and exit handlers of their own, and TVM objects
// that hold driver objects may outlive static destruction.
const Library& TheLibrary() {
  static const Library* library = FirstWithDevice();
  return *library;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef()
      .def("smartmem.opencl.library", [] { return tvm::ffi::String(LibraryFile()); })
      .def("smartmem.opencl.extra_driver",
           [](tvm::ffi::String file) { ExtraDriver() = std::string(file); });
}

}  // namespace

const std::string& LibraryFile() { return TheLibrary().file; }

const std::string& LibraryProblem() { return TheLibrary().problem; }

std::string LibraryOf(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fname : "";
}

const Api& Cl() {
  const Library& library = TheLibrary();
  if (!library.problem.empty()) [[unlikely]] {
    TVM_FFI_THROW(RuntimeError) << library.problem;
  }
  return library.api;
}

void* ExtensionFunction(cl_platform_id platform, const char* name) {
  void* const address = Cl().clGetExtensionFunctionAddressForPlatform(platform, name);
  // Drivers of phones export these functions, but not all of them return them by name.
  return address != nullptr ? address : dlsym(TheLibrary().handle, name);
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
