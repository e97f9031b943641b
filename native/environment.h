// SPDX-License-Identifier: Apache-2.0
// Environment variables that hold numbers.
#pragma once

#include <tvm/ffi/error.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace smartmem::opencl {

// The number in a variable, or `fallback` if it is not set; throws unless it is 1 or more.
inline int64_t WholeNumber(const char* variable, int64_t fallback) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const int64_t number = std::strtoll(text, &end, 10);
  if (*end != '\0' || number < 1) {
    TVM_FFI_THROW(ValueError) << variable << " is '" << text << "' and must be a whole number, at least 1.";
  }
  return number;
}

}  // namespace smartmem::opencl
