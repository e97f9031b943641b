// SPDX-License-Identifier: Apache-2.0
// A module of OpenCL kernels, which TVM's compiler makes and its loader loads.
#pragma once

#include <tvm/ffi/extra/module.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "function_info.h"
#include "object.h"
#include "program.h"

namespace smartmem::opencl {

inline constexpr char kModuleKind[] = "opencl";

// A kernel on one device. An OpenCL kernel object holds its arguments, and a driver may take as long to
// set new ones as for the launch itself. Sets of arguments recur at every inference, so each set has a
// kernel object of its own, up to a limit. One launch at a time uses it.
struct DeviceKernel {
  struct Set {
    Kernel kernel;
    // Ids of the arguments: ids of memory, bytes of numbers. Fewer than the kernel has while some are not set.
    std::vector<uint64_t> arguments;
    bool is_set = false;
  };
  Program program;
  std::vector<Role> roles;  // of TVM's arguments; empty if not known
  std::string plain;        // the source as TVM printed it
  std::vector<Set> sets;
  size_t oldest = 0;  // the set to be replaced next once the limit is reached
  std::mutex mutex;
};

class ClModule final : public tvm::ffi::ModuleObj {
 public:
  ClModule(ModuleData data, tvm::ffi::Map<tvm::ffi::String, tvm::ffi::String> source);

  const char* kind() const final { return kModuleKind; }
  int GetPropertyMask() const final {
    return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable;
  }
  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final;
  tvm::ffi::Bytes SaveToBytes() const final { return Serialize(data_); }
  tvm::ffi::String InspectSource(const tvm::ffi::String& format) const final;

  // Builds every kernel for the device, once; returns how many were compiled (the others came from
  // the cache).
  int Build(int device_index);
  DeviceKernel& KernelOn(int device_index, const std::string& name);

 private:
  struct OnDevice {
    std::once_flag once;
    int compiled = 0;
    std::map<std::string, DeviceKernel> kernels;
  };
  OnDevice& Built(int device_index);
  void BuildAll(int device_index, OnDevice* on_device);

  ModuleData data_;
  tvm::ffi::Map<tvm::ffi::String, tvm::ffi::String> source_;  // for InspectSource; not saved
  std::mutex mutex_;  // guards on_devices_
  std::map<int, OnDevice> on_devices_;
};

}  // namespace smartmem::opencl
