// SPDX-License-Identifier: Apache-2.0
// (stub by the lead, helper A replaces it)
#pragma once
#include <string>
#include <vector>
#include "device.h"
namespace smartmem::opencl {
struct KernelSource { std::string name; std::string code; };
std::vector<KernelSource> SplitKernels(const std::string& code);
struct BuiltProgram { cl_program program = nullptr; bool from_cache = false; };
std::vector<BuiltProgram> BuildPrograms(const Device& device, const std::vector<KernelSource>& kernels, const std::string& options = "");
}
