// SPDX-License-Identifier: Apache-2.0
// Copies between host memory, buffers and images.
#pragma once

#include <dlpack/dlpack.h>

#include "stream.h"

namespace smartmem::opencl {

// Copies all of `from` to `to`, which hold the same number of bytes; one or both on OpenCL.
// To and from the host it is done on return, on the device it is enqueued.
void Copy(const DLTensor& from, const DLTensor& to, void* stream_handle);

}  // namespace smartmem::opencl
