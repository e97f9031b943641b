// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <tvm/ffi/error.h>

#include <algorithm>

namespace smartmem::opencl {
namespace {

// Views and parts that a storage keeps; further ones belong to plans no longer in use. If one plan needs more than the
// limit, its images are made anew at every inference.
constexpr size_t kMostViews = 256;
constexpr size_t kMostParts = 4096;

std::string MebiBytes(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

bool OutOfMemory(cl_int code) {
  return code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES || code == CL_OUT_OF_HOST_MEMORY;
}

// Whether the driver refuses this image, as opposed to a lack of memory or a lost device.
bool ImageRefused(cl_int code) {
  return code == CL_INVALID_IMAGE_DESCRIPTOR || code == CL_INVALID_IMAGE_FORMAT_DESCRIPTOR ||
         code == CL_INVALID_IMAGE_SIZE || code == CL_IMAGE_FORMAT_NOT_SUPPORTED || code == CL_INVALID_VALUE ||
         code == CL_INVALID_OPERATION;
}

// Allocates; if there is no memory, releases unused storages and tries once more.
template <typename F>
auto Allocated(Device& device, size_t bytes, F create) {
  cl_int code = CL_SUCCESS;
  auto object = create(&code);
  if (OutOfMemory(code) && ReleaseUnusedStorages() > 0) object = create(&code);
  if (code == CL_SUCCESS) return object;
  device.Check(code, "allocating " + std::to_string(bytes) + " bytes (the device has " +
                         MebiBytes(device.global_bytes) + ", at most " + MebiBytes(device.max_alloc_bytes) +
                         " at once: use a smaller batch, or another device)");
  return object;
}

ImageObject CreateImage(const Device& device, const ImageShape& shape, size_t row_bytes, cl_mem buffer,
                        cl_int* code) {
  const cl_image_format format = {CL_RGBA, shape.channel_type};
  cl_image_desc description = {};
  description.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY;
  description.image_width = shape.width;
  description.image_height = shape.height;
  description.image_array_size = shape.depth;
  description.image_row_pitch = row_bytes;
  description.buffer = buffer;
  return ImageObject(
      Cl().clCreateImage(device.context, CL_MEM_READ_WRITE, &format, &description, nullptr, code));
}

}  // namespace

std::unique_ptr<Memory> Memory::NewBuffer(Device& device, size_t bytes) {
  device.Require();
  std::unique_ptr<Memory> memory(new Memory(device));
  const size_t size = memory->bytes_ = std::max<size_t>(bytes, 1);  // OpenCL has no empty buffers
  memory->buffer_ = Allocated(device, size, [&](cl_int* code) {
    return BufferObject(Cl().clCreateBuffer(device.context, CL_MEM_READ_WRITE, size, nullptr, code));
  });
  return memory;
}

std::unique_ptr<Memory> Memory::NewImage(Device& device, const ImageShape& shape) {
  device.Require();
  std::unique_ptr<Memory> memory(new Memory(device));
  memory->shape_ = shape;
  memory->bytes_ = shape.bytes();
  memory->image_ = Allocated(device, memory->bytes_,
                             [&](cl_int* code) { return CreateImage(device, shape, 0, nullptr, code); });
  return memory;
}

// Returns null if the driver refuses the image.
std::unique_ptr<Memory> Memory::ImageOver(Device& device, const ImageShape& shape, const Memory& buffer) {
  const size_t row_bytes = shape.RowBytes(device);
  if (buffer.is_image() || buffer.begin() != 0 || !device.image_from_buffer) return nullptr;
  if (row_bytes * shape.height * shape.depth > buffer.bytes_) return nullptr;
  cl_int code = CL_SUCCESS;
  std::unique_ptr<Memory> memory(new Memory(device));
  memory->shape_ = shape;
  memory->bytes_ = shape.bytes();
  memory->image_ = CreateImage(device, shape, row_bytes, buffer.handle(), &code);
  if (code == CL_SUCCESS) return memory;
  if (!ImageRefused(code)) device.Check(code, "clCreateImage over a buffer");
  // The extension defines image2d only; not every driver that has it makes arrays of them.
  device.image_from_buffer = false;
  return nullptr;
}

Memory* Memory::View(const ImageShape& shape) {
  if (is_image() && shape == shape_) return this;
  std::lock_guard<std::mutex> lock(mutex_);
  auto same = std::find_if(views_.begin(), views_.end(), [&](const auto& view) { return view->shape_ == shape; });
  if (same == views_.end()) {
    DropUnusedViews();
    std::unique_ptr<Memory> view = ImageOver(device_, shape, *this);
    if (view == nullptr) view = NewImage(device_, shape);
    view->base_ = this;
    same = views_.insert(views_.end(), std::move(view));
  }
  ++(*same)->users_;
  return same->get();
}

std::unique_ptr<Memory> Memory::NewPart(size_t offset, size_t bytes) const {
  if (offset + bytes > bytes_) {
    TVM_FFI_THROW(ValueError) << "a tensor of " << bytes << " bytes at offset " << offset << " lies outside of its "
                              << "storage of " << bytes_ << " bytes: compile the model again.";
  }
  if ((begin_ + offset) % kPartAlignment != 0) return NewBuffer(device_, bytes);
  std::unique_ptr<Memory> part(new Memory(device_));
  part->bytes_ = bytes;
  part->whole_ = whole_ == nullptr ? this : whole_;
  part->begin_ = begin_ + offset;
  return part;
}

Memory* Memory::Part(size_t offset, size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  if (offset == 0 && bytes == bytes_) return this;
  std::lock_guard<std::mutex> lock(mutex_);
  auto same = parts_.find({offset, bytes});
  if (same == parts_.end()) {
    if (parts_.size() >= kMostParts) std::erase_if(parts_, [](const auto& part) { return part.second->users_ == 0; });
    std::unique_ptr<Memory> part = NewPart(offset, bytes);
    part->base_ = this;
    same = parts_.emplace(std::pair(offset, bytes), std::move(part)).first;
  }
  ++same->second->users_;
  return same->second.get();
}

void Memory::ReleaseView(Memory* view) {
  if (view == this) return;
  std::lock_guard<std::mutex> lock(mutex_);
  --view->users_;
}

void Memory::DropUnusedViews() {
  if (views_.size() < kMostViews) return;
  std::erase_if(views_, [](const auto& view) { return view->users_ == 0; });
}

}  // namespace smartmem::opencl
