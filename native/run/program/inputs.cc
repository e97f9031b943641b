// SPDX-License-Identifier: Apache-2.0
#include "inputs.h"

#include <cstring>
#include <string>

namespace smartmem::run {
namespace {

struct Float {
  const char* name;
  int exponent, mantissa;  // bits
};

constexpr Float kFloats[] = {{"float16", 5, 10}, {"bfloat16", 8, 7}, {"float32", 8, 23}, {"float64", 11, 52}};

// Makes a float from its bits, so that the compiler need not support these types.
uint64_t RandomFloat(const Float& type, uint64_t drawn) {
  const uint64_t bias = (uint64_t{1} << (type.exponent - 1)) - 1;
  const uint64_t exponent = bias - 1 - (drawn >> 60 & 3);
  const uint64_t sign = drawn >> 63;
  const uint64_t mantissa = drawn & ((uint64_t{1} << type.mantissa) - 1);
  return sign << (type.exponent + type.mantissa) | exponent << type.mantissa | mantissa;
}

size_t Width(const smartmem_run_tensor& input) {
  uint64_t count = 1;
  for (int32_t i = 0; i < input.rank; ++i) count *= static_cast<uint64_t>(input.shape[i]);
  return count == 0 ? 1 : input.bytes / count;
}

}  // namespace

std::vector<char> RandomNumbers(const smartmem_run_tensor& input, std::mt19937_64* random) {
  std::vector<char> data(input.bytes);
  const std::string dtype = input.dtype;
  const Float* type = nullptr;
  for (const Float& each : kFloats) type = dtype == each.name ? &each : type;
  const bool indices = input.ids_below > 0 && dtype.find("int") != std::string::npos;
  if (type == nullptr && !indices) return data;
  const size_t width = Width(input);
  for (size_t at = 0; at + width <= data.size(); at += width) {
    const uint64_t drawn = (*random)();
    const uint64_t bits = type != nullptr ? RandomFloat(*type, drawn) : drawn % static_cast<uint64_t>(input.ids_below);
    std::memcpy(&data[at], &bits, width);  // x86 and Arm are little-endian
  }
  return data;
}

}  // namespace smartmem::run
