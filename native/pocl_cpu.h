// SPDX-License-Identifier: Apache-2.0
// The CPU that the PoCL from PyPI compiles for.
#pragma once

#include "device.h"

namespace smartmem::opencl {

// Makes the PoCL 3.0 of the extra [pocl] compile for a CPU for which its code is correct; does nothing for other
// drivers. Call it before anything is compiled.
//
// Its LLVM 14 refuses every kernel on an unknown CPU ("unknown target CPU 'generic'"), and compiles some kernels
// wrongly for CPUs with AVX-512 (docs/opencl.md). PoCL has no setting for the CPU, so this function changes its name in
// the driver's record of the device.
void NameCpu(Device* device);

}  // namespace smartmem::opencl
