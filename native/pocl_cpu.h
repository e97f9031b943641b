// SPDX-License-Identifier: Apache-2.0
// For which CPU the PoCL from PyPI compiles.
#pragma once

#include "device.h"

namespace smartmem::opencl {

// Makes the PoCL 3.0 of the extra [pocl] compile for a CPU that it gets right; leaves all other drivers alone. Call it
// before anything is compiled.
//
// Its LLVM 14 refuses every kernel on a CPU that it does not know ("unknown target CPU 'generic'"), and what it makes of
// some kernels for one with AVX-512 is wrong (docs/opencl.md). There is no setting for the CPU, so this changes its name
// in the driver's record of the device.
void NameCpu(Device* device);

}  // namespace smartmem::opencl
