// SPDX-License-Identifier: Apache-2.0
// The wheel's tvm/runtime/tensor.h includes this header, and the wheel does not ship it.
// Declarations only: what tensor.h's inline functions name, none of which this library calls.
#pragma once

#include <cstddef>

namespace tvm::support {

class Stream {
 public:
  size_t Read(void* data, size_t bytes);
  void Write(const void* data, size_t bytes);
  template <typename T>
  bool Read(T* data);
  template <typename T>
  void Write(const T& data);
  template <typename T>
  bool ReadArray(T* data, size_t count);
  template <typename T>
  void WriteArray(const T* data, size_t count);
};

}  // namespace tvm::support
