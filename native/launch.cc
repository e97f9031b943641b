// SPDX-License-Identifier: Apache-2.0
#include "launch.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>

#include "device_api.h"
#include "stream.h"

namespace smartmem::opencl {
namespace {

// "blockIdx.y" -> 1, "threadIdx.x" -> 3
int AxisOf(const std::string& tag, const std::string& kernel) {
  for (int axis = 0; axis < 6; ++axis) {
    if (tag == std::string(axis < 3 ? "blockIdx." : "threadIdx.") + "xyz"[axis % 3]) return axis;
  }
  TVM_FFI_THROW(ValueError) << "the kernel " << kernel << " is launched with '" << tag
                            << "', which OpenCL does not have: bind its loops to blockIdx and threadIdx, with "
                               "local memory of fixed size.";
  throw;
}

// A network launches a kernel with a handful of sets of arguments; more come from arguments that are new each time.
constexpr size_t kMostSets = 64;

}  // namespace

Launcher::Launcher(tvm::ffi::ObjectPtr<ClModule> module, const FunctionInfo& info)
    : module_(std::move(module)), name_(info->name), arg_types_(info->arg_types.begin(), info->arg_types.end()) {
  for (const auto& tag : info->launch_param_tags) {
    axes_.push_back(AxisOf(tag, name_));
    dimensions_ = std::max<cl_uint>(dimensions_, axes_.back() % 3 + 1);
  }
}

DeviceKernel& Launcher::KernelOn(int device_index) {
  if (static_cast<size_t>(device_index) >= found_.size()) return module_->KernelOn(device_index, name_);
  DeviceKernel* kernel = found_[device_index].load(std::memory_order_acquire);
  if (kernel == nullptr) [[unlikely]] {
    kernel = &module_->KernelOn(device_index, name_);
    found_[device_index].store(kernel, std::memory_order_release);
  }
  return *kernel;
}

Sizes Launcher::SizesOf(const TVMFFIAny* extents, bool* empty) const {
  Sizes sizes;
  sizes.dimensions = dimensions_;
  size_t groups[3] = {1, 1, 1};
  for (size_t i = 0; i < axes_.size(); ++i) {
    (axes_[i] < 3 ? groups : sizes.local)[axes_[i] % 3] = static_cast<size_t>(extents[i].v_int64);
    *empty |= extents[i].v_int64 == 0;
  }
  for (int axis = 0; axis < 3; ++axis) sizes.global[axis] = groups[axis] * sizes.local[axis];
  return sizes;
}

// TVM checks shapes and types before a launch, but not whether a tensor is in a buffer or an image, and drivers crash
// at a wrong one.
const Memory* Launcher::MemoryArgument(const DeviceKernel& kernel, size_t index, const Memory* memory) const {
  const bool known = index < kernel.roles.size();  // false for a source not in TVM's form
  const bool image = known && kernel.roles[index] == Role::kImage;
  if (memory != nullptr && known && memory->is_image() != image) [[unlikely]] {
    TVM_FFI_THROW(TypeError) << "kernel " << name_ << " takes a " << (image ? "texture" : "buffer") << " as argument "
                             << index << " and got a tensor in a " << (image ? "buffer" : "texture")
                             << ": allocate the tensor with mem_scope="
                             << (image ? "\"global.texture\"" : "\"global\"") << ".";
  }
  if (memory != nullptr && !known && memory->begin() != 0) [[unlikely]] {
    TVM_FFI_THROW(TypeError) << "kernel " << name_ << " got a tensor within another one's buffer as argument " << index
                             << ", and its source does not begin as TVM's do: copy the tensor first.";
  }
  return memory;
}

Argument Launcher::NumberAt(size_t index, const TVMFFIAny& value) const {
  const DLDataType type = arg_types_[index];
  Argument argument = {};
  argument.bytes = type.bits / 8;
  if (type.code == kDLFloat && type.bits == 32) {
    argument.single = static_cast<float>(value.v_float64);
  } else if (type.code == kDLFloat && type.bits == 64) {
    argument.number = value.v_float64;
  } else if ((type.code == kDLInt || type.code == kDLUInt) && type.bits >= 8) {
    argument.integer = value.v_int64;
  } else {
    TVM_FFI_THROW(TypeError) << "argument " << index << " of kernel " << name_ << " is a scalar of type "
                             << tvm::ffi::DLDataTypeToString(type)
                             << ", which cannot be passed to OpenCL: pass it as float32 or int32.";
  }
  std::memcpy(&argument.id, &argument.integer, sizeof(argument.id));
  return argument;
}

// Reads TVM's arguments, and appends the offsets of tensors in their buffers, in the order of AddBegins.
void Launcher::Read(const DeviceKernel& kernel, const TVMFFIAny* args, std::vector<Argument>* arguments) const {
  arguments->clear();
  thread_local std::vector<Argument> begins;
  begins.clear();
  for (size_t i = 0; i < arg_types_.size(); ++i) {
    if (arg_types_[i].code != kDLOpaqueHandle) {
      arguments->push_back(NumberAt(i, args[i]));
      continue;
    }
    const Memory* memory = MemoryArgument(kernel, i, static_cast<const Memory*>(args[i].v_ptr));
    Argument object = {}, begin = {};
    object.memory = memory == nullptr ? nullptr : memory->handle();
    object.id = memory == nullptr ? 0 : memory->id();
    object.bytes = sizeof(cl_mem);
    object.is_object = true;
    arguments->push_back(object);
    if (i >= kernel.roles.size() || kernel.roles[i] != Role::kBuffer) continue;
    begin.id = memory == nullptr ? 0 : memory->begin();
    begin.integer = static_cast<int64_t>(begin.id);
    begin.bytes = sizeof(cl_ulong);
    begins.push_back(begin);
  }
  arguments->insert(arguments->end(), begins.begin(), begins.end());
}

DeviceKernel::Set Launcher::NewSet(Device& device, const DeviceKernel& kernel) const {
  cl_int code = CL_SUCCESS;
  DeviceKernel::Set fresh{Kernel(Cl().clCreateKernel(kernel.program.get(), name_.c_str(), &code))};
  device.Check(code, "clCreateKernel of " + name_);
  return fresh;
}

DeviceKernel::Set& Launcher::Free(Device& device, DeviceKernel* kernel) const {
  if (!kernel->sets.back().is_set) return kernel->sets.back();
  if (kernel->sets.size() == kMostSets) return kernel->sets[kernel->oldest++ % kMostSets];
  kernel->sets.push_back(NewSet(device, *kernel));
  return kernel->sets.back();
}

// Sets the arguments that differ from those of the kernel object.
void Launcher::SetArguments(DeviceKernel::Set* set, const std::vector<Argument>& wanted) const {
  set->is_set = false;  // until the driver has accepted all of them
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (i < set->arguments.size() && set->arguments[i] == wanted[i].id) continue;
    const cl_int code =
        Cl().clSetKernelArg(set->kernel.get(), static_cast<cl_uint>(i), wanted[i].bytes, &wanted[i].integer);
    if (code != CL_SUCCESS) [[unlikely]] {
      set->arguments.resize(std::min(i, set->arguments.size()));
      Check(code, "argument " + std::to_string(i) + " of kernel " + name_);
    }
    if (i == set->arguments.size()) set->arguments.push_back(0);
    set->arguments[i] = wanted[i].id;
  }
  set->is_set = true;
}

cl_kernel Launcher::With(Device& device, DeviceKernel* kernel, const std::vector<Argument>& wanted) const {
  const auto same = [](uint64_t id, const Argument& argument) { return id == argument.id; };
  for (const DeviceKernel::Set& set : kernel->sets) {
    if (set.is_set && std::equal(set.arguments.begin(), set.arguments.end(), wanted.begin(), wanted.end(), same)) {
      return set.kernel.get();
    }
  }
  DeviceKernel::Set& set = Free(device, kernel);
  SetArguments(&set, wanted);
  return set.kernel.get();
}

std::string Launcher::LaunchError(cl_int code, const Device& device, cl_kernel kernel, const Sizes& sizes) const {
  std::string text = "launching kernel " + name_ + " with global size (";
  for (cl_uint i = 0; i < dimensions_; ++i) text += (i ? ", " : "") + std::to_string(sizes.global[i]);
  text += ") and work groups of (";
  for (cl_uint i = 0; i < dimensions_; ++i) text += (i ? ", " : "") + std::to_string(sizes.local[i]);
  text += ")";
  if (code == CL_INVALID_WORK_GROUP_SIZE || code == CL_INVALID_WORK_ITEM_SIZE || code == CL_OUT_OF_RESOURCES) {
    size_t most = 0;
    Cl().clGetKernelWorkGroupInfo(kernel, device.id, CL_KERNEL_WORK_GROUP_SIZE, sizeof(most), &most, nullptr);
    text += ", of which the device runs at most " + std::to_string(most) +
            " work items each for this kernel (compile for a target with a smaller max_num_threads),";
  }
  return text;
}

void Launcher::operator()(tvm::ffi::PackedArgs packed, tvm::ffi::Any*) {
  const auto* args = reinterpret_cast<const TVMFFIAny*>(packed.data());
  bool empty = false;
  const Sizes sizes = SizesOf(args + arg_types_.size(), &empty);
  if (empty) return;  // a dimension of size 0: nothing to compute
  Stream& stream = CurrentStream(CurrentDevice());
  Device& device = stream.device();
  device.Require();
  DeviceKernel& on_device = KernelOn(device.index);
  std::lock_guard<std::mutex> lock(on_device.mutex);
  const auto hold = stream.Hold();
  thread_local std::vector<Argument> wanted;
  Read(on_device, args, &wanted);
  if (Recording* recording = Recording::Current()) [[unlikely]] {
    recording->Add({module_, &on_device, name_, wanted, sizes});
  }
  cl_kernel kernel = With(device, &on_device, wanted);
  const cl_int code = Cl().clEnqueueNDRangeKernel(stream.queue(), kernel, dimensions_, nullptr, sizes.global,
                                                  sizes.local, 0, nullptr, nullptr);
  if (code != CL_SUCCESS) [[unlikely]] device.Check(code, LaunchError(code, device, kernel, sizes));
}

}  // namespace smartmem::opencl
