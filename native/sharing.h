// SPDX-License-Identifier: Apache-2.0
// Kernel objects for recorded launches, which take each memory object once.
#pragma once

#include <vector>

#include "recording.h"

namespace smartmem::opencl {

// The launches with kernel objects of their own. Tensors of one buffer, an arena or the weights, are one argument of such a
// kernel: a driver takes up each memory object that a launch is given. Which tensors lie in one buffer is known here and not
// when a module is built, so the kernels are built once more, by the same rules (program.h): in parallel, and never twice.
//
// Not where a driver compiles a kernel for as long as thousands of launches take (CompilesAtLaunch);
// SMARTMEM_OPENCL_SHARED_ARGUMENTS=1 or 0 says otherwise.
std::vector<RecordedLaunch> WithOwnKernels(Device& device, const std::vector<NotedLaunch>& noted);

}  // namespace smartmem::opencl
