// SPDX-License-Identifier: Apache-2.0
// The OpenCL library of this machine, opened at the first use.
#pragma once

#include <string>

#include "cl.h"

namespace smartmem::opencl {

struct Api {
#define SMARTMEM_CL_MEMBER(type, name, parameters) type(*name) parameters = nullptr;
  SMARTMEM_CL_FUNCTIONS(SMARTMEM_CL_MEMBER)
#undef SMARTMEM_CL_MEMBER
};

// Why there is no OpenCL library, in one sentence with the remedy; empty if there is one.
const std::string& LibraryProblem();

// The functions of the library; throws LibraryProblem() if there is none.
const Api& Cl();

// "CL_OUT_OF_RESOURCES" for -5; the number for a code we have no name for.
std::string ErrorName(cl_int code);

// Throws unless `code` is CL_SUCCESS; `call` is what was attempted, e.g. "clBuildProgram of fused_matmul".
void Check(cl_int code, const std::string& call);

inline void Check(cl_int code, const char* call) {
  if (code != CL_SUCCESS) [[unlikely]] Check(code, std::string(call));
}

}  // namespace smartmem::opencl
