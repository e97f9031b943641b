// SPDX-License-Identifier: Apache-2.0
// The OpenCL library of this machine, opened at the first use.
#pragma once

#include <string>

#include "cl.h"

namespace smartmem::opencl {

struct Api {
#define SMARTMEM_CL_MEMBER(index, type, name, parameters) type(*name) parameters = nullptr;
  SMARTMEM_CL_FUNCTIONS(SMARTMEM_CL_MEMBER)
#undef SMARTMEM_CL_MEMBER
};

// How a driver for this machine's CPU is installed: the end of a sentence.
#if defined(__x86_64__) && defined(__linux__)
constexpr const char* kInstallCpuDriver = "for this machine's CPU `pip install 'smartmem-tvm[pocl]'`.";
#else
constexpr const char* kInstallCpuDriver =
    "for this machine's CPU `apt-get install pocl-opencl-icd ocl-icd-libopencl1`.";
#endif

// The library in use: what SMARTMEM_OPENCL_LIBRARY names, or the first that finds a device of the system's loader and the
// driver of the extra [pocl]. Opens it.
const std::string& LibraryFile();

// Why there is no OpenCL library, in one sentence with the remedy; empty if there is one.
const std::string& LibraryProblem();

// The file of the shared library that an address belongs to; empty if to none.
std::string LibraryOf(const void* address);

// The functions of the library; throws LibraryProblem() if there is none.
const Api& Cl();

// A function of one of the platform's extensions; null if it has none of that name.
void* ExtensionFunction(cl_platform_id platform, const char* name);

// "CL_OUT_OF_RESOURCES" for -5; the number for a code we have no name for.
std::string ErrorName(cl_int code);

// Throws unless `code` is CL_SUCCESS; `call` is what was attempted, e.g. "clBuildProgram of fused_matmul".
void Check(cl_int code, const std::string& call);

inline void Check(cl_int code, const char* call) {
  if (code != CL_SUCCESS) [[unlikely]] Check(code, std::string(call));
}

}  // namespace smartmem::opencl
