// SPDX-License-Identifier: Apache-2.0
// Launching a kernel with the arguments that TVM's host code passes.
#pragma once

#include <tvm/ffi/function.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "function_info.h"
#include "memory.h"
#include "module.h"
#include "recording.h"

namespace smartmem::opencl {

// The host's side of one kernel: arguments first, then one extent for each launch tag.
class Launcher {
 public:
  Launcher(tvm::ffi::ObjectPtr<ClModule> module, const FunctionInfo& info);
  void operator()(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);

 private:
  DeviceKernel& KernelOn(int device_index);
  Sizes SizesOf(const TVMFFIAny* extents, bool* empty) const;
  // Returns a kernel object with these arguments; throws if the driver refuses one.
  cl_kernel With(Device& device, DeviceKernel* kernel, const std::vector<Argument>& wanted) const;
  void Read(const DeviceKernel& kernel, const TVMFFIAny* args, std::vector<Argument>* arguments) const;
  void SetArguments(DeviceKernel::Set* set, const std::vector<Argument>& wanted) const;
  DeviceKernel::Set NewSet(Device& device, const DeviceKernel& kernel) const;
  DeviceKernel::Set& Free(Device& device, DeviceKernel* kernel) const;
  Argument NumberAt(size_t index, const TVMFFIAny& value) const;
  const Memory* MemoryArgument(const DeviceKernel& kernel, size_t index, const Memory* memory) const;
  std::string LaunchError(cl_int code, const Device& device, cl_kernel kernel, const Sizes& sizes) const;

  tvm::ffi::ObjectPtr<ClModule> module_;  // keeps the kernels alive
  std::string name_;
  std::vector<DLDataType> arg_types_;
  std::vector<int> axes_;  // for each extent: 0..2 a number of work-groups, 3..5 a work-group size
  cl_uint dimensions_ = 1;
  std::array<std::atomic<DeviceKernel*>, 8> found_{};  // by device: a launch needs no map
};

}  // namespace smartmem::opencl
