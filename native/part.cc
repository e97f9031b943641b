// SPDX-License-Identifier: Apache-2.0
// Tensors in a storage that holds others at the same time: each gets a data pointer of its own, a part of the storage, as
// kernels take no tensor that begins within its data. What vm.builtin.ensure_zero_offset does where addresses can be
// counted with.
#include <tvm/ffi/error.h>
#include <tvm/runtime/tensor.h>

#include "memory.h"
#include "register.h"

namespace smartmem::opencl {
namespace {

using tvm::runtime::Tensor;

class PartAlloc {
 public:
  explicit PartAlloc(Tensor whole) : whole_(std::move(whole)) {}

  void AllocData(DLTensor* tensor) {
    Memory* storage = static_cast<Memory*>(whole_->data);
    tensor->data = storage->Part(whole_->byte_offset, tvm::ffi::GetDataSize(*tensor));
  }
  void FreeData(DLTensor* tensor) {
    static_cast<Memory*>(whole_->data)->ReleaseView(static_cast<Memory*>(tensor->data));
  }

 private:
  Tensor whole_;  // keeps the storage
};

Tensor Part(Tensor tensor) {
  if (tensor->device.device_type != kDLOpenCL || static_cast<Memory*>(tensor->data)->is_image()) {
    TVM_FFI_THROW(TypeError) << "vm.builtin.smartmem_part takes a tensor in an OpenCL buffer, and got one elsewhere: "
                                "pass what vm.builtin.alloc_tensor returned.";
  }
  return Tensor::FromNDAlloc(PartAlloc(tensor), tensor.Shape(), tensor->dtype, tensor->device);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef().def("vm.builtin.smartmem_part", Part);
}

}  // namespace
}  // namespace smartmem::opencl
