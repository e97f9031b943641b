// SPDX-License-Identifier: Apache-2.0
// Other processes that compile programs and put them into the cache.
//
// They are for PoCL, which compiles one kernel at a time, on however many threads it is called, and does
// most of the work only at the first launch, for the size of that launch. Several processes compile in
// parallel, and PoCL accepts the size as a setting (the first line of the source has it, see
// _smartmem_opencl_workers.py), so that the launch has nothing left to compile.
#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace smartmem::opencl {

// Whether the driver compiles at the first launch, and a worker can compile the kernel earlier.
bool WantsWorker(const Device& device, const KernelSource& kernel);

// Compiles kernels and puts them into the cache's folder. Returns false if there are no workers,
// or too few kernels for them to be worth starting. A kernel that a worker fails to build is missing
// in the folder: the caller builds it in this process, and gets the error.
bool CompileInWorkers(const Device& device, const std::vector<const KernelSource*>& kernels,
                      const std::string& options);

}  // namespace smartmem::opencl
