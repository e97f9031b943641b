// SPDX-License-Identifier: Apache-2.0
// Kernel objects for recorded launches, which take each memory object once.
#pragma once

#include <vector>

#include "recording.h"

namespace smartmem::opencl {

// Returns the launches with kernel objects of their own. Tensors of one buffer, an arena or the weights, are one
// argument of these kernels, since a driver takes time for each memory object of a launch. Which tensors share a buffer
// is known only now, not when a module is built, so the kernels are built once more, as in program.h: in parallel, and
// never twice.
//
// Arguments are not shared if the driver compiles a kernel for as long as thousands of launches take
// (CompilesAtLaunch); SMARTMEM_OPENCL_SHARED_ARGUMENTS=1 or 0 overrides this.
std::vector<RecordedLaunch> WithOwnKernels(Device& device, const std::vector<NotedLaunch>& noted);

}  // namespace smartmem::opencl
