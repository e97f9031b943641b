// SPDX-License-Identifier: Apache-2.0
#include "arena.h"

#include <sys/mman.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace smartmem::stream {
namespace {

using tvm::ffi::Shape;
using tvm::ffi::Tensor;

class ViewAlloc {
 public:
  ViewAlloc(std::shared_ptr<Arena> arena, int64_t offset) : arena_(std::move(arena)), offset_(offset) {}
  void AllocData(DLTensor* tensor) { tensor->data = arena_->data() + offset_; }
  void FreeData(DLTensor*) {}

 private:
  std::shared_ptr<Arena> arena_;
  int64_t offset_;
};

// Returns the bytes of a tensor; negative if a size is negative or the product overflows.
int64_t BytesOf(const Shape& shape, DLDataType dtype) {
  int64_t bits = static_cast<int64_t>(dtype.bits) * dtype.lanes;
  bool overflow = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return -1;
    overflow |= __builtin_mul_overflow(bits, extent, &bits);
  }
  return overflow ? -1 : bits / 8 + (bits % 8 != 0);
}

bool Is(const Tensor& view, const Shape& shape, DLDataType dtype) {
  const DLDataType other = view.dtype();
  return other.code == dtype.code && other.bits == dtype.bits && other.lanes == dtype.lanes &&
         std::equal(shape.begin(), shape.end(), view.shape().begin(), view.shape().end());
}

// A limit, because a dynamic shape would add views with each inference.
constexpr size_t kMostShapes = 16;

}  // namespace

Arena::Arena(int64_t bytes) : mapped_(static_cast<size_t>(std::max<int64_t>(bytes, 1))) {
  void* pages = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    TVM_FFI_THROW(RuntimeError) << "no memory for an arena of " << bytes << " bytes ("
                                << std::generic_category().message(errno) << "): use a plan that needs less.";
  }
  data_ = static_cast<char*>(pages);
#ifdef MADV_HUGEPAGE
  // Weights are read sequentially, and small pages would exhaust the TLB.
  madvise(data_, mapped_, MADV_HUGEPAGE);
#endif
}

Arena::~Arena() { munmap(data_, mapped_); }

Tensor ViewOf(const std::shared_ptr<Arena>& arena, std::vector<Tensor>* cached, int64_t offset, int64_t room,
              const Shape& shape, DLDataType dtype) {
  for (const Tensor& view : *cached) {
    if (Is(view, shape, dtype)) return view;
  }
  if (const int64_t bytes = BytesOf(shape, dtype); bytes < 0 || bytes > room) {
    TVM_FFI_THROW(ValueError) << "a tensor of shape " << shape << " and type " << tvm::ffi::DLDataTypeToString(dtype)
                              << " does not fit into the " << room << " bytes at byte " << offset
                              << " of the arena: use the plan of this model.";
  }
  if (cached->size() == kMostShapes) cached->clear();
  cached->push_back(Tensor::FromNDAlloc(ViewAlloc(arena, offset), shape, dtype, DLDevice{kDLCPU, 0}));
  return cached->back();
}

}  // namespace smartmem::stream
