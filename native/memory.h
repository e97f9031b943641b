// SPDX-License-Identifier: Apache-2.0
// What a TVM tensor's data pointer points to: a buffer, a range of one, an image, or an image seen through a buffer.
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

// Of the longest vector, double16, and of a line of a GPU's cache.
inline constexpr size_t kPartAlignment = 128;

class Memory {
 public:
  // New device memory; throws, with the sizes, if the driver has none left.
  static std::unique_ptr<Memory> NewBuffer(Device& device, size_t bytes);
  static std::unique_ptr<Memory> NewImage(Device& device, const ImageShape& shape);

  // A tensor in this allocation: itself if it has that form, else an image over the same bytes
  // where the driver can do that (cl_khr_image2d_from_buffer) and beside them where it cannot.
  // TVM's planner never lets two live tensors share bytes, so that either is right.
  // Views are kept, since a plan asks for the same ones at every inference.
  Memory* View(const ImageShape& shape);
  // These bytes of this buffer: itself if they are all of it, and memory beside it where they begin at no multiple of
  // `kPartAlignment`. No object of the driver's, of which several over the same bytes are synchronised or copied at each
  // use (or wrong): kernels are given the whole buffer, and where the part begins. Kept likewise.
  Memory* Part(size_t offset, size_t bytes);
  void ReleaseView(Memory* view);

  // Of the driver's object alone: handles come back after a release, this does not.
  uint64_t id() const { return whole_ == nullptr ? id_ : whole_->id(); }
  cl_mem handle() const { return image_ ? image_.get() : whole_ == nullptr ? buffer_.get() : whole_->handle(); }
  size_t begin() const { return begin_; }  // of the tensor in a buffer, in bytes
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
  const Memory* whole_ = nullptr;  // of a part
  size_t begin_ = 0;               // likewise

  Memory* base_ = nullptr;  // of a view
  int users_ = 0;           // of a view
  std::mutex mutex_;        // guards views_, parts_ and their users_
  std::vector<std::unique_ptr<Memory>> views_;
  std::map<std::pair<size_t, size_t>, std::unique_ptr<Memory>> parts_;  // by offset and bytes
};

// Gives the driver what the virtual machines keep for later (allocator.cc); returns how many bytes.
size_t ReleaseUnusedStorages();

}  // namespace smartmem::opencl
