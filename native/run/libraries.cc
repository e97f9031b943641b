// SPDX-License-Identifier: Apache-2.0
#include "libraries.h"

#include <dlfcn.h>
#include <strings.h>
#include <sys/stat.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>

namespace smartmem::run {
namespace {

using tvm::ffi::Function;

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// Returns the folder of the library that contains an address.
std::string FolderOf(const void* address) {
  Dl_info info;
  const std::string file = dladdr(address, &info) != 0 ? info.dli_fname : "";
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

// Makes TVM's symbols global, as the libraries need them and TVM may have been opened with RTLD_LOCAL.
void ShowRuntime() {
  for (const char* name : {"libtvm_ffi.so", "libtvm_runtime.so"}) dlopen(name, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

std::string Beside(const std::string& name) {
  return FolderOf(reinterpret_cast<const void*>(&OpenLibraries)) + "/" + name;
}

bool IsBeside(const std::string& name) { return access(Beside(name).c_str(), R_OK) == 0; }

void OpenBeside(const std::string& name, const std::string& what) {
  const std::string path = Beside(name);
  ShowRuntime();
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const char* why = dlerror();
  TVM_FFI_THROW(RuntimeError) << path << ", with which " << what << ", cannot be opened (" << FirstLine(why)
                              << "): put the library of `smartmem export --runner` there.";
}

bool Known(const char* function) { return Function::GetGlobal(function).has_value(); }

using File = std::tuple<dev_t, ino_t, off_t>;

File FileOf(const std::string& path) {
  struct stat facts;
  if (stat(path.c_str(), &facts) != 0) TVM_FFI_THROW(RuntimeError) << path << " is missing: copy the folder again.";
  return {facts.st_dev, facts.st_ino, facts.st_size};
}

struct Loaded {
  File file;
  std::weak_ptr<Code> code;
};

}  // namespace

void OpenLibraries(const Manifest& manifest) {
  // A runtime for a phone may include TVM's own OpenCL.
  if (manifest.device == kDLOpenCL && !Known("device_api.opencl")) OpenBeside("opencl.so", "OpenCL runs");
  if (manifest.streamed && !Known("smartmem.stream.load")) OpenBeside("stream.so", "weights are read within a budget");
  // Sorting and random numbers; present only if a model needs it.
  if (IsBeside("libtvm_runtime_extra.so")) OpenBeside("libtvm_runtime_extra.so", "kernels sort");
  // Without it, kernels use TVM's pool. Only modules opened later find it.
  const char* threads = std::getenv("SMARTMEM_THREADS");
  const bool tvms = threads != nullptr && strcasecmp(threads, "tvm") == 0;
  if (manifest.device == kDLCPU && !tvms && !Known("smartmem.threads.counts") && IsBeside("threads.so")) {
    OpenBeside("threads.so", "kernels share their loops among threads");
  }
}

Code::Code(const std::string& path)
    : module_([&] {
        try {
          return tvm::ffi::Module::LoadFromFile(tvm::ffi::String(path));
        } catch (const tvm::ffi::Error& error) {
          TVM_FFI_THROW(RuntimeError) << path << " cannot be loaded (" << FirstLine(error.message())
                                      << "): compile the model for this machine.";
        }
      }()) {}

std::shared_ptr<Code> Code::Open(const std::string& path) {
  // Never destroyed: programs may close models during their exit.
  static auto* const mutex = new std::mutex();
  static auto* const codes = new std::map<std::string, Loaded>();
  const std::unique_ptr<char, void (*)(void*)> whole(realpath(path.c_str(), nullptr), std::free);
  const std::string name = whole == nullptr ? path : whole.get();
  const File file = FileOf(name);
  const std::lock_guard<std::mutex> lock(*mutex);
  Loaded& known = (*codes)[name];
  if (std::shared_ptr<Code> code = known.code.lock(); code != nullptr && known.file == file) return code;
  // For a name that is already loaded, the system's loader may return the old file.
  if (known.file != File() && known.file != file) {
    TVM_FFI_THROW(RuntimeError) << name << " has changed since this process loaded it: load it in a new process, or "
                                << "give the folder another name.";
  }
  auto code = std::make_shared<Code>(name);
  known = {file, code};
  return code;
}

}  // namespace smartmem::run
