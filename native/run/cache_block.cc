// SPDX-License-Identifier: Apache-2.0
#include "cache_block.h"

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace smartmem::run {
namespace {

using tvm::runtime::Tensor;

constexpr uint64_t kCacheAlignment = 64;  // bytes, which kernels rely on

class Block {
 public:
  explicit Block(uint64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
  }
  ~Block() { munmap(data_, bytes_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
  uint64_t bytes_;
};

// Gives a tensor a part of the block, and keeps the block alive.
class PartOfBlock {
 public:
  PartOfBlock(std::shared_ptr<Block> block, uint64_t offset) : block_(std::move(block)), offset_(offset) {}

  void AllocData(DLTensor* tensor) { tensor->data = block_->data() + offset_; }
  void FreeData(DLTensor*) {}

 private:
  std::shared_ptr<Block> block_;
  uint64_t offset_;
};

}  // namespace

std::map<std::string, Tensor> CachesInOneBlock(const Manifest& manifest) {
  std::map<std::string, std::pair<const TensorInfo*, uint64_t>> places;
  uint64_t end = 0;
  for (const SizeInfo& size : manifest.sizes) {
    for (const CacheInfo& each : size.caches) {
      if (!places.emplace(each.tensor.name, std::make_pair(&each.tensor, end)).second) continue;
      end += (each.tensor.bytes + kCacheAlignment - 1) / kCacheAlignment * kCacheAlignment;
    }
  }
  std::map<std::string, Tensor> found;
  const auto block = end == 0 ? nullptr : std::make_shared<Block>(end);
  for (const auto& [name, place] : places) {
    const TensorInfo& info = *place.first;
    const tvm::ffi::Shape shape(info.shape.begin(), info.shape.end());
    const DLDevice cpu{kDLCPU, 0};
    found.emplace(name, info.bytes == 0 ? Tensor::Empty(shape, info.kept, cpu)
                                        : Tensor::FromNDAlloc(PartOfBlock(block, place.second), shape, info.kept, cpu));
  }
  return found;
}

}  // namespace smartmem::run
