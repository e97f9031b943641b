// SPDX-License-Identifier: Apache-2.0
// Other processes that compile programs and put them into the cache.
//
// For PoCL: it compiles one kernel at a time, however many threads ask, and most of it only when
// the kernel is launched first, for the size of that launch. Several processes are not held up by
// each other, and PoCL can be told the size (the first line of the source has it, see
// _smartmem_opencl_workers.py), so that nothing is left to compile for the launch.
#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace smartmem::opencl {

// Whether the driver compiles at the launch, and a worker can do it before.
bool WantsWorker(const Device& device, const KernelSource& kernel);

// Compiles kernels and puts them into the cache's folder. Returns false if there are no workers,
// or too few kernels for them to be worth starting. What a worker fails to build is not in the
// folder: building it in this process says why.
bool CompileInWorkers(const Device& device, const std::vector<const KernelSource*>& kernels,
                      const std::string& options);

}  // namespace smartmem::opencl
