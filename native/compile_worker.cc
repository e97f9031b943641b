// SPDX-License-Identifier: Apache-2.0
#include "compile_worker.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/runtime/device_api.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>

#include "cache_folder.h"
#include "parallel.h"
#include "program_cache.h"
#include "register.h"

extern char** environ;

namespace smartmem::opencl {
namespace {

using tvm::ffi::Array;
using tvm::ffi::String;

// The command of a process that calls smartmem_opencl_compile; empty if none was set.
std::vector<std::string>& WorkerCommand() {
  static auto* command = new std::vector<std::string>();
  return *command;
}

// Returns PoCL's name for the variant of a kernel that a launch will need; empty if the source does
// not begin with the sizes. Grids below 65535 work items in each direction have a variant of their own.
std::string PoclVariant(const std::string& code) {
  size_t group[3], grid[3];
  if (std::sscanf(code.c_str(), "// Work group %zu %zu %zu, grid %zu %zu %zu", &group[0], &group[1], &group[2],
                  &grid[0], &grid[1], &grid[2]) != 6) {
    return "";
  }
  size_t widest = 0;
  for (int axis = 0; axis < 3; ++axis) widest = std::max(widest, group[axis] * grid[axis]);
  return std::to_string(group[0]) + "-" + std::to_string(group[1]) + "-" + std::to_string(group[2]) + "-goffs0" +
         (widest < 65535 ? "-smallgrid" : "");
}

// Writes a string after its length: the format that a worker reads.
void Put(FILE* file, const std::string& text) {
  const uint64_t bytes = text.size();
  std::fwrite(&bytes, sizeof(bytes), 1, file);
  std::fwrite(text.data(), 1, text.size(), file);
}

bool Take(FILE* file, std::string* text) {
  uint64_t bytes = 0;
  if (std::fread(&bytes, sizeof(bytes), 1, file) != 1) return false;
  text->resize(bytes);
  return std::fread(text->data(), 1, bytes, file) == bytes;
}

// The kernels that one worker compiles.
struct Batch {
  std::string variant;
  std::vector<const KernelSource*> kernels;
};

// Divides kernels among workers. A worker compiles for one variant only: PoCL reads that setting once
// per process.
std::vector<Batch> Batches(std::vector<const KernelSource*> kernels) {
  const auto longer = [](const auto* a, const auto* b) { return a->code.size() > b->code.size(); };
  std::stable_sort(kernels.begin(), kernels.end(), longer);
  std::map<std::string, std::vector<const KernelSource*>> by_variant;
  for (const auto* kernel : kernels) by_variant[PoclVariant(kernel->code)].push_back(kernel);
  // Starting a worker takes as long as compiling half a kernel, so batches are not too small; they are
  // not too large either, so that the last worker does not end late.
  const size_t most = std::clamp<size_t>(kernels.size() / (2 * Jobs()), 1, 8);
  std::vector<Batch> batches;
  for (const auto& [variant, group] : by_variant) {
    const size_t count = (group.size() - 1) / most + 1;
    const size_t first = batches.size();
    batches.resize(first + count, Batch{variant, {}});
    // Round robin, so that each batch gets its share of the long kernels.
    for (size_t i = 0; i < group.size(); ++i) batches[first + i % count].kernels.push_back(group[i]);
  }
  std::stable_sort(batches.begin(), batches.end(), [&](const Batch& a, const Batch& b) {
    return longer(a.kernels.front(), b.kernels.front());
  });
  return batches;
}

std::vector<std::string> WorkerEnvironment(const Batch& batch, const std::string& folder) {
  const std::vector<std::string> ours = {"SMARTMEM_OPENCL_CACHE=" + folder, "SMARTMEM_OPENCL_LIBRARY=" + LibraryFile(),
                                         "SMARTMEM_OPENCL_PLATFORM=", "SMARTMEM_OPENCL_DEVICE=", "SMARTMEM_OPENCL_JOBS=1",
                                         "POCL_BINARY_SPECIALIZE_WG=" + batch.variant};
  std::vector<std::string> all = ours;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('=') + 1);
    const auto same = [&](const std::string& mine) { return mine.rfind(name, 0) == 0; };
    if (std::none_of(ours.begin(), ours.end(), same)) all.push_back(text);
  }
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Starts a process that reads the request from the file, and waits until it has ended.
void RunWorker(FILE* request, std::vector<std::string> environment) {
  std::vector<std::string> command = WorkerCommand();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(request), STDIN_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t worker = 0;
  const int error = posix_spawnp(&worker, command[0].c_str(), &actions, nullptr, Pointers(command).data(),
                                 Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return;
  int status = 0;
  while (waitpid(worker, &status, 0) < 0 && errno == EINTR) {
  }
  // The user's Ctrl-C reaches the workers too; this process must then not compile the kernels itself.
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) {
    TVM_FFI_THROW(KeyboardInterrupt) << "compiling the OpenCL kernels was interrupted.";
  }
}

void CompileBatch(const Device& device, const Batch& batch, const std::string& options, const std::string& folder) {
  const std::unique_ptr<FILE, int (*)(FILE*)> request(std::tmpfile(), std::fclose);
  if (request == nullptr) return;
  Put(request.get(), Fingerprint(device));
  Put(request.get(), options);
  for (const KernelSource* kernel : batch.kernels) {
    Put(request.get(), kernel->name);
    Put(request.get(), kernel->code);
  }
  if (std::fflush(request.get()) != 0) return;
  std::rewind(request.get());
  RunWorker(request.get(), WorkerEnvironment(batch, folder));
}

// In a worker: compiles the kernels that it reads from standard input.
void CompileRequests() {
  std::string fingerprint, options;
  KernelSource kernel;
  if (!Take(stdin, &fingerprint) || !Take(stdin, &options)) return;
  const auto& devices = Devices();
  const auto device = std::find_if(devices.begin(), devices.end(),
                                   [&](const auto& other) { return Fingerprint(*other) == fingerprint; });
  if (device == devices.end()) return;
  while (Take(stdin, &kernel.name) && Take(stdin, &kernel.code)) {
    CompileAndStore(GetDevice((*device)->index), kernel, options);
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  // The command must load the libraries in its arguments, and call smartmem_opencl_compile.
  tvm::ffi::reflection::GlobalDef().def("smartmem.opencl.worker", [](Array<String> start) {
    std::vector<std::string> command(start.begin(), start.end());
    command.push_back(LibraryOf(reinterpret_cast<void*>(&TVMFFIFunctionCall)));
    command.push_back(LibraryOf(reinterpret_cast<void*>(&tvm::runtime::DeviceAPI::Get)));
    command.push_back(LibraryOf(&live_objects));
    WorkerCommand() = std::move(command);
  });
}

}  // namespace

bool WantsWorker(const Device& device, const KernelSource& kernel) {
  return CompilesAtLaunch(device) && !PoclVariant(kernel.code).empty();
}

bool CompileInWorkers(const Device& device, const std::vector<const KernelSource*>& kernels,
                      const std::string& options) {
  constexpr size_t worth_starting = 4;
  const std::string folder = CacheFolder();
  if (kernels.size() < worth_starting || folder.empty() || WorkerCommand().empty() || Jobs() == 1) return false;
  if (!CanWrite(folder)) return false;  // a worker returns its programs through the cache only
  const std::vector<Batch> batches = Batches(kernels);
  ForEach(batches.size(), Jobs(), [&](size_t i) { CompileBatch(device, batches[i], options, folder); });
  return true;
}

}  // namespace smartmem::opencl

// The main function of a worker process.
extern "C" __attribute__((visibility("default"))) int smartmem_opencl_compile() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the worker ends with its parent process
  if (getppid() == 1) return 1;      // the parent process had ended before
  try {
    smartmem::opencl::CompileRequests();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
