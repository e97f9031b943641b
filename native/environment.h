// SPDX-License-Identifier: Apache-2.0
// Environment variables.
#pragma once

#include <tvm/ffi/error.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace smartmem::opencl {

// Returns the text of a variable; empty if it is not set.
inline std::string Environment(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

// Returns the number in a variable, or `fallback` if it is not set; throws unless it is 1 or more.
inline int64_t WholeNumber(const char* variable, int64_t fallback) {
  const std::string text = Environment(variable);
  if (text.empty()) return fallback;
  char* end = nullptr;
  const int64_t number = std::strtoll(text.c_str(), &end, 10);
  if (*end != '\0' || number < 1) {
    TVM_FFI_THROW(ValueError) << variable << " is '" << text << "' and must be a whole number, at least 1.";
  }
  return number;
}

}  // namespace smartmem::opencl
