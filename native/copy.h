// SPDX-License-Identifier: Apache-2.0
// Copies between host memory, buffers and images.
#pragma once

#include <dlpack/dlpack.h>

#include "stream.h"

namespace smartmem::opencl {

// Copies all of `from` to `to`, which have the same number of bytes; one or both are on OpenCL.
// A copy to or from the host has finished on return; a copy on the device is enqueued.
void Copy(const DLTensor& from, const DLTensor& to, void* stream_handle);

}  // namespace smartmem::opencl
