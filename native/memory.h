// SPDX-License-Identifier: Apache-2.0
// The target of a TVM tensor's data pointer: a buffer, a range of one, an image, or an image over a buffer.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "texture.h"

namespace smartmem::opencl {

// Bytes of the longest vector, double16, and of a cache line of a GPU.
inline constexpr size_t kPartAlignment = 128;

class Memory {
 public:
  // Allocates device memory; throws, with the sizes, if the driver has none left.
  static std::unique_ptr<Memory> NewBuffer(Device& device, size_t bytes);
  static std::unique_ptr<Memory> NewImage(Device& device, const ImageShape& shape);

  // Returns an image for a tensor in this allocation: itself if it has that shape, else an image over
  // the same bytes if the driver has cl_khr_image2d_from_buffer, else a separate image. Both are
  // correct, since TVM's planner never lets two live tensors share bytes.
  // Views are kept, since a plan needs the same ones at every inference.
  Memory* View(const ImageShape& shape);
  // Returns a range of this buffer: itself if the range is all of it, and separate memory if the range begins at no
  // multiple of `kPartAlignment`. A part is no sub-buffer: drivers synchronise or copy several objects over the same
  // bytes at each use (or compute wrong results). Kernels get the whole buffer and the offset of the part. Parts are
  // kept like views.
  Memory* Part(size_t offset, size_t bytes);
  void ReleaseView(Memory* view);

  // The id of the driver's object: unlike a handle, it is never reused after a release.
  uint64_t id() const { return whole_ == nullptr ? id_ : whole_->id(); }
  cl_mem handle() const { return image_ ? image_.get() : whole_ == nullptr ? buffer_.get() : whole_->handle(); }
  size_t begin() const { return begin_; }  // offset of the tensor in the buffer, in bytes
  bool is_image() const { return static_cast<bool>(image_); }
  const ImageShape& shape() const { return shape_; }
  Device& device() const { return device_; }
  Memory* base() { return base_ == nullptr ? this : base_; }

 private:
  explicit Memory(Device& device) : device_(device) {}
  static std::unique_ptr<Memory> ImageOver(Device& device, const ImageShape& shape, const Memory& buffer);
  std::unique_ptr<Memory> NewPart(size_t offset, size_t bytes) const;
  void DropUnusedViews();

  inline static std::atomic<uint64_t> last_id_ = 0;

  Device& device_;
  const uint64_t id_ = ++last_id_;
  BufferObject buffer_;
  ImageObject image_;
  ImageShape shape_;
  size_t bytes_ = 0;
  const Memory* whole_ = nullptr;  // for a part: the buffer that it is in
  size_t begin_ = 0;               // for a part: its offset there, in bytes

  Memory* base_ = nullptr;  // for a view or part: the storage that keeps it
  int users_ = 0;           // for a view or part: live tensors
  std::mutex mutex_;        // guards views_, parts_ and their users_
  std::vector<std::unique_ptr<Memory>> views_;
  std::map<std::pair<size_t, size_t>, std::unique_ptr<Memory>> parts_;  // by offset and bytes
};

// Releases the storages that the virtual machines keep for reuse (allocator.cc); returns their bytes.
size_t ReleaseUnusedStorages();

}  // namespace smartmem::opencl
