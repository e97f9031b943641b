// SPDX-License-Identifier: Apache-2.0
#include "copy.h"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <array>
#include <vector>

#include "memory.h"
#include "recording.h"

namespace smartmem::opencl {
namespace {

constexpr size_t kOrigin[3] = {0, 0, 0};

// One end of a copy.
struct End {
  // Throws for a part of a texture: OpenCL copies rectangles of texels, which are no ranges of elements.
  explicit End(const DLTensor& tensor) : offset(tensor.byte_offset) {
    if (tensor.device.device_type == kDLOpenCL) {
      memory = static_cast<Memory*>(tensor.data);
      offset += memory->begin();
    } else {
      host = static_cast<char*>(tensor.data) + tensor.byte_offset;
    }
    const size_t bytes = tvm::ffi::GetDataSize(tensor);
    if (IsImage() && (offset != 0 || bytes != memory->shape().bytes())) {
      TVM_FFI_THROW(ValueError) << "a view of " << bytes << " bytes at offset " << offset << " of a texture of "
                                << memory->shape().bytes() << " bytes cannot be copied: copy the whole texture.";
    }
  }
  bool IsImage() const { return memory != nullptr && memory->is_image(); }
  std::array<size_t, 3> Region() const {
    return {memory->shape().width, memory->shape().height, memory->shape().depth};
  }

  Memory* memory = nullptr;
  char* host = nullptr;
  size_t offset;
};

void Read(Stream& stream, const End& from, void* to, size_t bytes) {
  const auto hold = stream.Hold();
  cl_command_queue queue = stream.queue();
  if (from.IsImage()) {
    stream.device().Check(Cl().clEnqueueReadImage(queue, from.memory->handle(), CL_TRUE, kOrigin,
                                                  from.Region().data(), 0, 0, to, 0, nullptr, nullptr),
                          "clEnqueueReadImage");
  } else {
    stream.device().Check(Cl().clEnqueueReadBuffer(queue, from.memory->handle(), CL_TRUE, from.offset, bytes, to, 0,
                                                   nullptr, nullptr),
                          "clEnqueueReadBuffer");
  }
}

void Write(Stream& stream, const void* from, const End& to, size_t bytes) {
  const auto hold = stream.Hold();
  cl_command_queue queue = stream.queue();
  if (to.IsImage()) {
    stream.device().Check(Cl().clEnqueueWriteImage(queue, to.memory->handle(), CL_TRUE, kOrigin, to.Region().data(),
                                                   0, 0, from, 0, nullptr, nullptr),
                          "clEnqueueWriteImage");
  } else {
    stream.device().Check(Cl().clEnqueueWriteBuffer(queue, to.memory->handle(), CL_TRUE, to.offset, bytes, from, 0,
                                                    nullptr, nullptr),
                          "clEnqueueWriteBuffer");
  }
}

void CopyOnDevice(Stream& stream, const End& from, const End& to, size_t bytes) {
  const auto hold = stream.Hold();
  Device& device = stream.device();
  cl_command_queue queue = stream.queue();
  cl_mem source = from.memory->handle(), target = to.memory->handle();
  if (from.IsImage() && to.IsImage() && from.memory->shape() == to.memory->shape()) {
    device.Check(Cl().clEnqueueCopyImage(queue, source, target, kOrigin, kOrigin, to.Region().data(), 0, nullptr,
                                         nullptr),
                 "clEnqueueCopyImage");
  } else if (from.IsImage() && to.IsImage()) {
    // The images have rows of different lengths, so the elements pass through a buffer.
    const auto between = Memory::NewBuffer(device, bytes);
    device.Check(Cl().clEnqueueCopyImageToBuffer(queue, source, between->handle(), kOrigin, from.Region().data(), 0,
                                                 0, nullptr, nullptr),
                 "clEnqueueCopyImageToBuffer");
    device.Check(Cl().clEnqueueCopyBufferToImage(queue, between->handle(), target, 0, kOrigin, to.Region().data(), 0,
                                                 nullptr, nullptr),
                 "clEnqueueCopyBufferToImage");
  } else if (from.IsImage()) {
    device.Check(Cl().clEnqueueCopyImageToBuffer(queue, source, target, kOrigin, from.Region().data(), to.offset, 0,
                                                 nullptr, nullptr),
                 "clEnqueueCopyImageToBuffer");
  } else if (to.IsImage()) {
    device.Check(Cl().clEnqueueCopyBufferToImage(queue, source, target, from.offset, kOrigin, to.Region().data(), 0,
                                                 nullptr, nullptr),
                 "clEnqueueCopyBufferToImage");
  } else {
    device.Check(
        Cl().clEnqueueCopyBuffer(queue, source, target, from.offset, to.offset, bytes, 0, nullptr, nullptr),
        "clEnqueueCopyBuffer");
  }
}

}  // namespace

void Copy(const DLTensor& from_tensor, const DLTensor& to_tensor, void* stream_handle) {
  const size_t bytes = tvm::ffi::GetDataSize(from_tensor);
  if (bytes != tvm::ffi::GetDataSize(to_tensor)) {
    TVM_FFI_THROW(ValueError) << "a copy needs tensors of the same size, these hold " << bytes << " and "
                              << tvm::ffi::GetDataSize(to_tensor) << " bytes.";
  }
  if (!tvm::ffi::IsContiguous(from_tensor) || !tvm::ffi::IsContiguous(to_tensor)) {
    TVM_FFI_THROW(ValueError) << "OpenCL copies whole tensors: make both contiguous first.";
  }
  if (bytes == 0) return;
  if (Recording* recording = Recording::Current()) recording->Spoil();
  const End from(from_tensor), to(to_tensor);
  const DLDevice place = from.memory != nullptr ? from_tensor.device : to_tensor.device;
  Stream& stream = GetStream(place.device_id, stream_handle);
  stream.device().Require();
  if (to.memory == nullptr) return Read(stream, from, to.host, bytes);
  if (from.memory == nullptr) return Write(stream, from.host, to, bytes);
  if (&from.memory->device() == &to.memory->device()) return CopyOnDevice(stream, from, to, bytes);
  std::vector<char> host(bytes);  // two devices have two contexts, which share no memory
  Read(stream, from, host.data(), bytes);
  Write(CurrentStream(to_tensor.device.device_id), host.data(), to, bytes);
}

}  // namespace smartmem::opencl
