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

// The command that installs a driver for this machine's CPU, as the end of a sentence.
#if defined(__x86_64__) && defined(__linux__)
constexpr const char* kInstallCpuDriver = "for this machine's CPU `pip install 'smartmem-tvm[pocl]'`.";
#else
constexpr const char* kInstallCpuDriver =
    "for this machine's CPU `apt-get install pocl-opencl-icd ocl-icd-libopencl1`.";
#endif

// Opens the library to use and returns its file: that of SMARTMEM_OPENCL_LIBRARY, else the system's loader if it finds
// a device, else the driver of the extra [pocl].
const std::string& LibraryFile();

// The reason why there is no OpenCL library, in one sentence with the remedy; empty if there is one.
const std::string& LibraryProblem();

// The file of the shared library that an address belongs to; empty if there is none.
std::string LibraryOf(const void* address);

// The functions of the library; throws LibraryProblem() if there is none.
const Api& Cl();

// A function of one of the platform's extensions; null if it has none of that name.
void* ExtensionFunction(cl_platform_id platform, const char* name);

// Returns "CL_OUT_OF_RESOURCES" for -5; the number for a code without a name in cl.h.
std::string ErrorName(cl_int code);

// Throws unless `code` is CL_SUCCESS; `call` names the call in the message, e.g. "clBuildProgram of fused_matmul".
void Check(cl_int code, const std::string& call);

inline void Check(cl_int code, const char* call) {
  if (code != CL_SUCCESS) [[unlikely]] Check(code, std::string(call));
}

}  // namespace smartmem::opencl
