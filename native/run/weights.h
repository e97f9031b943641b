// SPDX-License-Identifier: Apache-2.0
// The weights of a compiled model as tensors: mapped from their file on a CPU, copied to any other device.
#pragma once

#include <tvm/runtime/tensor.h>

#include <vector>

#include "manifest.h"

namespace smartmem::run {

// Returns the weights in the order of the parameters of `main`. Throws if the file does not hold them.
std::vector<tvm::runtime::Tensor> LoadWeights(const Manifest& manifest, DLDevice device);

}  // namespace smartmem::run
