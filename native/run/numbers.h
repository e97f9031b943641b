// SPDX-License-Identifier: Apache-2.0
// Numbers of any of the types that inputs, caches and scores of a language model have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace smartmem::run {

inline int64_t Count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

bool IsFloat(const std::string& dtype);
bool IsKnown(const std::string& dtype);  // whether the functions below know the type
double NumberAt(const std::string& dtype, const std::vector<char>& data, size_t place);
void SetNumber(const std::string& dtype, size_t place, double number, std::vector<char>* data);

}  // namespace smartmem::run
