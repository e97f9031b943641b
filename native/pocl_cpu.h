// SPDX-License-Identifier: Apache-2.0
// For which CPU the PoCL from PyPI compiles.
#pragma once

#include "device.h"

namespace smartmem::opencl {

// Makes the PoCL 3.0 of the extra [pocl] compile for the CPU that its library of built-in functions is for; leaves all
// other drivers alone. Call it before anything is compiled.
//
// Its LLVM 14 knows no CPU newer than itself by name: it refuses every kernel ("unknown target CPU 'generic'"), or takes
// a name without AVX-512 for a CPU that has it, beside built-in functions that pass vectors in such registers. PoCL 3.1
// mends that in the same way. There is no setting for it, so this changes the name in the driver's record of the device.
void NameCpu(Device* device);

}  // namespace smartmem::opencl
