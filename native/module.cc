// SPDX-License-Identifier: Apache-2.0
#include "module.h"

#include <tvm/ffi/cast.h>

#include "device.h"
#include "launch.h"
#include "register.h"

namespace smartmem::opencl {

using tvm::ffi::Bytes;
using tvm::ffi::Map;
using tvm::ffi::Module;
using tvm::ffi::String;

ClModule::ClModule(ModuleData data, Map<String, String> source) : data_(std::move(data)), source_(std::move(source)) {
  if (data_.format != "cl") {
    TVM_FFI_THROW(ValueError) << "the OpenCL module holds '" << data_.format
                              << "' and not OpenCL C source: compile it for the target kind opencl.";
  }
}

tvm::ffi::Optional<tvm::ffi::Function> ClModule::GetFunction(const String& name) {
  const auto info = data_.functions.Get(name);
  if (!info.has_value()) return std::nullopt;
  auto self = tvm::ffi::GetObjectPtr<ClModule>(this);
  auto launcher = std::make_shared<Launcher>(std::move(self), *info);
  return tvm::ffi::Function::FromPacked(
      [launcher](tvm::ffi::PackedArgs args, tvm::ffi::Any* result) { (*launcher)(args, result); });
}

String ClModule::InspectSource(const String& format) const {
  if (auto found = source_.find(format); found != source_.end()) return (*found).second;
  if (format.empty() || format == data_.format) return String(data_.code.data(), data_.code.size());
  return String();
}

void ClModule::BuildAll(int device_index, OnDevice* on_device) {
  Device& device = GetDevice(device_index);
  device.Require();
  const std::vector<KernelSource> sources = SplitKernels(std::string(data_.code.data(), data_.code.size()));
  std::vector<BuiltProgram> programs = BuildPrograms(device, sources);
  for (size_t i = 0; i < sources.size(); ++i) {
    DeviceKernel& kernel = on_device->kernels[sources[i].name];
    kernel.roles = sources[i].roles;
    kernel.plain = sources[i].plain;
    kernel.program = std::move(programs[i].program);
    on_device->compiled += !programs[i].from_cache;
  }
  for (auto& [name, kernel] : on_device->kernels) {
    cl_int code = CL_SUCCESS;
    DeviceKernel::Set first{Kernel(Cl().clCreateKernel(kernel.program.get(), name.c_str(), &code))};
    device.Check(code, "clCreateKernel of " + name);
    kernel.sets.push_back(std::move(first));
  }
}

ClModule::OnDevice& ClModule::Built(int device_index) {
  OnDevice* on_device = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    on_device = &on_devices_[device_index];
  }
  std::call_once(on_device->once, [&] {
    on_device->kernels.clear();  // left over from an attempt that failed
    BuildAll(device_index, on_device);
  });
  return *on_device;
}

int ClModule::Build(int device_index) { return Built(device_index).compiled; }

DeviceKernel& ClModule::KernelOn(int device_index, const std::string& name) {
  auto& kernels = Built(device_index).kernels;
  const auto found = kernels.find(name);
  if (found == kernels.end()) {
    TVM_FFI_THROW(ValueError) << "the OpenCL module has no source for its kernel " << name
                              << ": the file is damaged; export the model again.";
  }
  return found->second;
}

namespace {

Module Create(ModuleData data, Map<String, String> source) {
  return Module(tvm::ffi::make_object<ClModule>(std::move(data), std::move(source)));
}

// Builds the module and everything that it imports; returns how many kernels were compiled.
int BuildImports(const Module& module, int device_index) {
  int compiled = 0;
  // Compares the address of the name: TVM's modules have no type information.
  if (module->kind() == kModuleKind) {
    compiled += static_cast<ClModule*>(const_cast<tvm::ffi::ModuleObj*>(module.operator->()))->Build(device_index);
  }
  for (const auto& import : module->imports()) compiled += BuildImports(import.cast<Module>(), device_index);
  return compiled;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef()
      .def("ffi.Module.create.opencl",
           [](Bytes code, String format, FunctionInfos functions, Map<String, String> source) {
             return Create({format, functions, code}, source);
           })
      .def("ffi.Module.load_from_bytes.opencl", [](Bytes bytes) { return Create(Deserialize(bytes), {}); })
      .def("smartmem.opencl.build", BuildImports);
}

}  // namespace
}  // namespace smartmem::opencl
