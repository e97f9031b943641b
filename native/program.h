// SPDX-License-Identifier: Apache-2.0
// OpenCL C to programs: kernels are built in parallel, and never twice (program_cache.h).
#pragma once

#include <string>
#include <vector>

#include "device.h"
#include "signature.h"

namespace smartmem::opencl {

// One OpenCL C program that holds one kernel.
struct KernelSource {
  std::string name;
  std::string code;         // the source for the driver
  std::vector<Role> roles;  // what AddBegins returned
  std::string plain;        // the code as TVM printed it
};

// Splits the code of a module into kernels, at the lines "// Function: NAME" that TVM writes, and adds parameters for
// the offsets of tensors in their buffers (signature.h).
std::vector<KernelSource> SplitKernels(const std::string& code);

struct BuiltProgram {
  Program program;
  bool from_cache = false;
};

// Builds programs with the options SMARTMEM_OPENCL_OPTIONS, SMARTMEM_OPENCL_JOBS at a time (see
// Jobs). If one fails, throws an error with the name of the kernel, the driver's log and the source
// lines that the log names.
std::vector<BuiltProgram> BuildPrograms(Device& device, const std::vector<KernelSource>& kernels);

// Whether the driver does most of its compiling at a kernel's first launch (compile_worker.h).
bool CompilesAtLaunch(const Device& device);

// Builds one program from its source and puts it into the cache; does nothing if it cannot be built.
void CompileAndStore(Device& device, const KernelSource& kernel, const std::string& options);

}  // namespace smartmem::opencl
