// SPDX-License-Identifier: Apache-2.0
#include "weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace smartmem::run {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::runtime::Tensor;

constexpr uint64_t kAlignment = 64;  // bytes, which kernels rely on

class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (file >= 0 && fstat(file, &facts) == 0 && facts.st_size > 0) {
      bytes_ = static_cast<uint64_t>(facts.st_size);
      // A private writable mapping, as in Python: it is never written, so processes share the pages.
      data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    }
    if (file >= 0) close(file);
    if (file >= 0 && data_ != MAP_FAILED) return;
    TVM_FFI_THROW(RuntimeError) << path << " cannot be mapped into memory: see whether it is there, and whether there "
                                << "is memory for it.";
  }
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint64_t bytes() const { return bytes_; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Returns a tensor of the mapped data; it keeps the mapping alive.
class PartOfFile {
 public:
  PartOfFile(std::shared_ptr<Mapping> mapping, uint64_t offset) : mapping_(std::move(mapping)), offset_(offset) {}

  void AllocData(DLTensor* tensor) { tensor->data = mapping_->data() + offset_; }
  void FreeData(DLTensor*) {}

 private:
  std::shared_ptr<Mapping> mapping_;
  uint64_t offset_;
};

Tensor InFile(const std::shared_ptr<Mapping>& file, const WeightPlace& place) {
  const tvm::ffi::Shape shape(place.shape.begin(), place.shape.end());
  const DLDevice cpu{kDLCPU, 0};
  if (place.bytes == 0) return Tensor::Empty(shape, place.dtype, cpu);
  return Tensor::FromNDAlloc(PartOfFile(file, place.offset), shape, place.dtype, cpu);
}

Tensor Alone(const Tensor& here, const WeightPlace& place, DLDevice device) {
  Tensor there = Tensor::Empty(here.Shape(), place.dtype, device, tvm::ffi::String(place.scope));
  if (place.bytes > 0) there.CopyFrom(here);
  return there;
}

// Those in buffers are in one, where the device's library has that.
void Move(const std::vector<WeightPlace>& places, DLDevice device, std::vector<Tensor>* tensors) {
  const auto together = Function::GetGlobal("smartmem.opencl.together");
  const bool one = device.device_type == kDLOpenCL && together.has_value();
  std::vector<size_t> in_buffers;
  Array<Tensor> here;
  for (size_t i = 0; i < places.size(); ++i) {
    if (one && places[i].scope == "global") {
      in_buffers.push_back(i);
      here.push_back((*tensors)[i]);
    } else {
      (*tensors)[i] = Alone((*tensors)[i], places[i], device);
    }
  }
  if (in_buffers.empty()) return;
  const auto there = (*together)(here, device).cast<Array<Tensor>>();
  for (size_t i = 0; i < in_buffers.size(); ++i) (*tensors)[in_buffers[i]] = there[i];
}

bool Fits(const WeightPlace& place, uint64_t bytes) {
  uint64_t end;
  return place.offset % kAlignment == 0 && !__builtin_add_overflow(place.offset, place.bytes, &end) && end <= bytes;
}

}  // namespace

std::vector<Tensor> LoadWeights(const Manifest& manifest, DLDevice device) {
  std::vector<Tensor> tensors;
  const std::string path = manifest.folder + "/" + kWeights;
  const bool empty = std::all_of(manifest.weights.begin(), manifest.weights.end(),
                                 [](const WeightPlace& each) { return each.bytes == 0; });
  const auto file = empty ? nullptr : std::make_shared<Mapping>(path);
  for (const WeightPlace& place : manifest.weights) {
    if (!empty && !Fits(place, file->bytes())) {
      TVM_FFI_THROW(ValueError) << path << " does not hold the weights that are listed beside it: compile the model "
                                << "again, or copy the folder again.";
    }
    tensors.push_back(InFile(file, place));
  }
  if (device.device_type != kDLCPU) Move(manifest.weights, device, &tensors);
  return tensors;
}

}  // namespace smartmem::run
