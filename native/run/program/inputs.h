// SPDX-License-Identifier: Apache-2.0
// Numbers for inputs that no file was given for.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "smartmem_run.h"

namespace smartmem::run {

// Floats between 1/16 and 1, half of them negative; integers below what the model says, where it says something, and
// otherwise 0, as of all other types. The same for the same seed on every machine.
std::vector<char> RandomNumbers(const smartmem_run_tensor& input, std::mt19937_64* random);

}  // namespace smartmem::run
