// SPDX-License-Identifier: Apache-2.0
// See io.h beside this: named by tvm/runtime/tensor.h, not shipped, not used here.
#pragma once

#include "io.h"
