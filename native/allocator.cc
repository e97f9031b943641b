// SPDX-License-Identifier: Apache-2.0
// The virtual machine's memory: storages kept for the next inference, tensors as views of them.
#include <tvm/ffi/container/tensor.h>
#include <tvm/runtime/memory/memory_manager.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "device_api.h"
#include "recording.h"
#include "register.h"

namespace smartmem::opencl {
namespace {

using tvm::runtime::memory::Buffer;

constexpr size_t kPage = 4096;  // bytes: sizes are rounded up, so that storages of similar sizes can be reused

class ClAllocator;

// All allocators of the process; TVM makes at most two for each device, and destroys none.
struct Allocators {
  std::mutex mutex;
  std::vector<ClAllocator*> list;
};
Allocators& AllAllocators() {
  static auto* allocators = new Allocators();
  return *allocators;
}

class ClAllocator final : public tvm::runtime::memory::Allocator {
 public:
  explicit ClAllocator(tvm::runtime::memory::AllocatorType type) : Allocator(type) {
    std::lock_guard<std::mutex> lock(AllAllocators().mutex);
    AllAllocators().list.push_back(this);
  }
  ~ClAllocator() override { ReleaseUnused(); }

  // Allocates bytes for any use.
  Buffer Alloc(DLDevice device, size_t bytes, size_t, DLDataType) final {
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    if (void* unused = TakeUnused(size)) return Describe(device, unused, size);
    auto memory = Memory::NewBuffer(GetDevice(device.device_id), size);
    used_bytes_ += size;
    return Describe(device, memory.release(), size);
  }

  // Allocates one tensor. For the storages of a texture plan TVM passes a shape of one dimension
  // in a texture scope: those are bytes for any use too.
  Buffer Alloc(DLDevice device, tvm::ffi::Shape shape, DLDataType dtype, const std::string& scope) final {
    const size_t bytes = tvm::ffi::GetDataSize(shape.Product(), dtype);
    if (!IsTextureScope(scope) || shape.size() == 1) return Alloc(device, bytes, kPage, dtype);
    auto memory = Allocate(device.device_id, static_cast<int>(shape.size()), shape.data(), dtype, scope);
    used_bytes_ += bytes;
    return Describe(device, memory.release(), bytes);
  }

  void* CreateView(const Buffer& buffer, tvm::ffi::Shape shape, DLDataType dtype, const std::string& scope) final {
    Memory* storage = static_cast<Memory*>(buffer.data);
    if (!IsTextureScope(scope)) return storage;
    return storage->View(
        ImageShapeOf(storage->device(), static_cast<int>(shape.size()), shape.data(), dtype, scope));
  }

  void FreeView(DLDevice, void* data) final {
    Memory* view = static_cast<Memory*>(data);
    view->base()->ReleaseView(view);
  }

  void Free(const Buffer& buffer) final {
    Memory* memory = static_cast<Memory*>(buffer.data);
    if (type() == tvm::runtime::memory::kPooled && !memory->is_image() && !memory->device().lost) {
      std::lock_guard<std::mutex> lock(mutex_);
      unused_[buffer.size].emplace(memory->id(), memory);
      return;
    }
    delete memory;
    used_bytes_ -= buffer.size;
  }

  void Clear() final { ReleaseUnused(); }

  // Returns how many bytes went back to the driver.
  size_t ReleaseUnused() {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t bytes = 0;
    for (auto& [size, memories] : unused_) {
      for (const auto& [id, memory] : memories) delete memory;
      bytes += size * memories.size();
    }
    unused_.clear();
    used_bytes_ -= bytes;
    return bytes;
  }

  size_t UsedMemory() const final { return used_bytes_; }

 protected:
  bool AllowMemoryScope(const std::string& scope) const final {
    return scope.empty() || scope == "global" || IsTextureScope(scope);
  }

 private:
  Buffer Describe(DLDevice device, void* data, size_t size) const { return Buffer{data, size, device, type()}; }

  void* TakeUnused(size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto same_size = unused_.find(size);
    if (same_size == unused_.end() || same_size->second.empty()) return nullptr;
    const auto oldest = same_size->second.begin();
    Memory* memory = oldest->second;
    same_size->second.erase(oldest);
    return memory;
  }

  std::mutex mutex_;
  // Ordered by size and id, not by the time of release: each inference then gets the same memory for
  // the same tensors, and kernels keep their arguments.
  std::map<size_t, std::map<uint64_t, Memory*>> unused_;
  std::atomic<size_t> used_bytes_ = 0;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef()
      .def("DeviceAllocator.opencl",
           [](DLDevice, int type) -> void* {
             return static_cast<tvm::runtime::memory::Allocator*>(
                 new ClAllocator(static_cast<tvm::runtime::memory::AllocatorType>(type)));
           })
      // Textures that a kernel's host code allocates for itself; the shape is (width, height, depth).
      .def_packed("device_api.opencl.alloc_nd",
                  [](tvm::ffi::PackedArgs args, tvm::ffi::Any* result) {
                    if (Recording* recording = Recording::Current()) recording->Spoil();
                    const int device = args[1].cast<int>();
                    const auto* image = static_cast<const int64_t*>(args[6].cast<void*>());
                    const int64_t texel_bits = args[7].cast<int64_t>();
                    const int64_t shape[] = {image[2], image[1], image[0], 4};
                    const DLDataType dtype = {kDLFloat, static_cast<uint8_t>(texel_bits / 4), 1};
                    *result = static_cast<void*>(Allocate(device, 4, shape, dtype, "global.texture").release());
                  })
      .def_packed("device_api.opencl.free_nd", [](tvm::ffi::PackedArgs args, tvm::ffi::Any* result) {
        delete static_cast<Memory*>(args[3].cast<void*>());
        *result = 0;
      });
}

}  // namespace

size_t ReleaseUnusedStorages() {
  std::lock_guard<std::mutex> lock(AllAllocators().mutex);
  size_t bytes = 0;
  for (ClAllocator* allocator : AllAllocators().list) bytes += allocator->ReleaseUnused();
  return bytes;
}

}  // namespace smartmem::opencl
