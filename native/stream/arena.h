// SPDX-License-Identifier: Apache-2.0
// The memory that all tensors of a plan share, and tensors as views of it.
#pragma once

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace smartmem::stream {

// Its own pages instead of malloc's, so that they return to the system at once.
class Arena {
 public:
  explicit Arena(int64_t bytes);  // throws if the system has no memory for it
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* data() const { return data_; }

 private:
  size_t mapped_;
  char* data_;
};

// Returns a tensor of the data at `offset` with at most `room` bytes, from `cached` if it exists. The tensor keeps the
// arena alive. Throws if the tensor is larger.
tvm::ffi::Tensor ViewOf(const std::shared_ptr<Arena>& arena, std::vector<tvm::ffi::Tensor>* cached, int64_t offset,
                        int64_t room, const tvm::ffi::Shape& shape, DLDataType dtype);

}  // namespace smartmem::stream
