// SPDX-License-Identifier: Apache-2.0
// (stub by the lead, helper A replaces it)
#include "program.h"
#include <tvm/ffi/error.h>
namespace smartmem::opencl {
std::vector<KernelSource> SplitKernels(const std::string& code) {
  std::vector<KernelSource> out; const std::string mark = "// Function: ";
  for (size_t at = code.find(mark); at != std::string::npos;) {
    size_t eol = code.find('\n', at), next = code.find(mark, eol);
    out.push_back({code.substr(at + mark.size(), eol - at - mark.size()), code.substr(eol, next - eol)});
    at = next;
  }
  return out;
}
std::vector<BuiltProgram> BuildPrograms(const Device& device, const std::vector<KernelSource>& kernels, const std::string& options) {
  std::vector<BuiltProgram> out;
  for (auto& k : kernels) {
    const char* s = k.code.c_str(); cl_int code;
    cl_program p = Cl().clCreateProgramWithSource(device.context, 1, &s, nullptr, &code); Check(code, "source");
    Check(Cl().clBuildProgram(p, 1, &device.id, options.c_str(), nullptr, nullptr), "build " + k.name);
    out.push_back({p, false});
  }
  return out;
}
}
