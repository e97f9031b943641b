// SPDX-License-Identifier: Apache-2.0
// See io.h beside this: named by tvm/runtime/tensor.h and tvm/runtime/vm/executable.h, not shipped, not used here.
#pragma once

#include "io.h"

namespace tvm::support {

template <typename T>
struct Serializer;

}  // namespace tvm::support
