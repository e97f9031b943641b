// SPDX-License-Identifier: Apache-2.0
// Tensors in a storage that holds others at the same time. Kernels take no tensor with a byte offset, so each gets a
// data pointer of its own, to a part of the storage, as vm.builtin.ensure_zero_offset does for devices with pointer
// arithmetic. Weights are packed likewise: a launch then has one memory object for all weights that it reads.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/runtime/tensor.h>

#include <algorithm>
#include <vector>

#include "memory.h"
#include "register.h"

namespace smartmem::opencl {
namespace {

using tvm::ffi::Array;
using tvm::runtime::Tensor;

class PartAlloc {
 public:
  PartAlloc(Tensor whole, size_t offset) : whole_(std::move(whole)), offset_(offset) {}

  void AllocData(DLTensor* tensor) {
    Memory* storage = static_cast<Memory*>(whole_->data);
    tensor->data = storage->Part(offset_, tvm::ffi::GetDataSize(*tensor));
  }
  void FreeData(DLTensor* tensor) {
    static_cast<Memory*>(whole_->data)->ReleaseView(static_cast<Memory*>(tensor->data));
  }

 private:
  Tensor whole_;  // keeps the storage
  size_t offset_;
};

Tensor Part(Tensor tensor) {
  if (tensor->device.device_type != kDLOpenCL || static_cast<Memory*>(tensor->data)->is_image()) {
    TVM_FFI_THROW(TypeError) << "vm.builtin.smartmem_part takes a tensor in an OpenCL buffer, and got one elsewhere: "
                                "pass what vm.builtin.alloc_tensor returned.";
  }
  return Tensor::FromNDAlloc(PartAlloc(tensor, tensor->byte_offset), tensor.Shape(), tensor->dtype, tensor->device);
}

size_t RoomOf(const Tensor& tensor) {
  const size_t bytes = std::max<size_t>(tvm::ffi::GetDataSize(*tensor.operator->()), 1);
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// Returns copies of tensors one behind the other, in as few buffers as the device's largest allocation allows.
Array<Tensor> Together(const Array<Tensor>& tensors, DLDevice device) {
  const size_t most = GetDevice(device.device_id).max_alloc_bytes;
  Array<Tensor> copies;
  for (size_t first = 0; first < tensors.size();) {
    size_t bytes = 0, end = first;
    do bytes += RoomOf(tensors[end++]);
    while (end < tensors.size() && bytes + RoomOf(tensors[end]) <= most);
    const Tensor whole = Tensor::Empty({static_cast<int64_t>(bytes)}, DLDataType{kDLUInt, 8, 1}, device);
    for (size_t offset = 0; first < end; offset += RoomOf(tensors[first++])) {
      const Tensor& from = tensors[first];
      Tensor copy = Tensor::FromNDAlloc(PartAlloc(whole, offset), from.Shape(), from->dtype, device);
      if (tvm::ffi::GetDataSize(*from.operator->()) > 0) copy.CopyFrom(from);
      copies.push_back(copy);
    }
  }
  return copies;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef()
      .def("vm.builtin.smartmem_part", Part)
      .def("smartmem.opencl.together", Together);
}

}  // namespace
}  // namespace smartmem::opencl
