// SPDX-License-Identifier: Apache-2.0
// Random numbers for inputs without a file.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "smartmem_run.h"

namespace smartmem::run {

// Floats between 1/16 and 1, half of them negative; integers below the model's bound if it has one, otherwise 0; 0 for
// all other types. A seed gives the same numbers on every machine.
std::vector<char> RandomNumbers(const smartmem_run_tensor& input, std::mt19937_64* random);

}  // namespace smartmem::run
