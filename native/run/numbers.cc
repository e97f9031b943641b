// SPDX-License-Identifier: Apache-2.0
#include "numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace smartmem::run {
namespace {

template <typename T>
T Read(const std::vector<char>& data, size_t place) {
  T number;
  std::memcpy(&number, data.data() + place * sizeof number, sizeof number);
  return number;
}

template <typename T>
void Write(T number, size_t place, std::vector<char>* data) {
  std::memcpy(data->data() + place * sizeof number, &number, sizeof number);
}

uint32_t Bits(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

float Float(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

float FromHalf(uint16_t bits) {
  const uint32_t exponent = (bits >> 10) & 31U, fraction = bits & 1023U;
  float found = Float(((exponent + 112) << 23) | (fraction << 13));
  if (exponent == 0) found = static_cast<float>(fraction) / (1 << 24);
  if (exponent == 31) {
    found = fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  }
  return (bits & 0x8000U) != 0 ? -found : found;
}

// Rounds towards zero; numbers beyond half's largest become that one.
uint16_t ToHalf(float number) {
  const uint32_t bits = Bits(number), sign = (bits >> 16) & 0x8000U;
  const int exponent = static_cast<int>((bits >> 23) & 255U) - 112;
  if (exponent <= 0) return static_cast<uint16_t>(sign);
  if (exponent >= 31) return static_cast<uint16_t>(sign | 0x7bffU);
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 | ((bits >> 13) & 1023U));
}

}  // namespace

bool IsFloat(const std::string& dtype) { return dtype == "float32" || dtype == "float16" || dtype == "bfloat16"; }

bool IsKnown(const std::string& dtype) {
  return IsFloat(dtype) || dtype == "int64" || dtype == "int32" || dtype == "bool";
}

double NumberAt(const std::string& dtype, const std::vector<char>& data, size_t place) {
  if (dtype == "float32") return Read<float>(data, place);
  if (dtype == "float16") return FromHalf(Read<uint16_t>(data, place));
  if (dtype == "bfloat16") return Float(static_cast<uint32_t>(Read<uint16_t>(data, place)) << 16);
  if (dtype == "int64") return static_cast<double>(Read<int64_t>(data, place));
  if (dtype == "int32") return Read<int32_t>(data, place);
  return Read<uint8_t>(data, place);
}

void SetNumber(const std::string& dtype, size_t place, double number, std::vector<char>* data) {
  if (dtype == "float32") Write(static_cast<float>(number), place, data);
  if (dtype == "float16") Write(ToHalf(static_cast<float>(number)), place, data);
  if (dtype == "bfloat16") Write(static_cast<uint16_t>(Bits(static_cast<float>(number)) >> 16), place, data);
  if (dtype == "int64") Write(static_cast<int64_t>(number), place, data);
  if (dtype == "int32") Write(static_cast<int32_t>(number), place, data);
  if (dtype == "bool") Write(static_cast<uint8_t>(number != 0), place, data);
}

}  // namespace smartmem::run
