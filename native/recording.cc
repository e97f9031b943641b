// SPDX-License-Identifier: Apache-2.0
#include "recording.h"

namespace smartmem::opencl {
namespace {

thread_local Recording* current = nullptr;

}  // namespace

Recording* Recording::Current() { return current; }

Recording::Scope::Scope(Recording* recording) { current = recording; }

Recording::Scope::~Scope() { current = nullptr; }

void Recording::Launch(Stream& stream) {
  Device& device = stream.device();
  device.Require();
  const auto hold = stream.Hold();
  cl_command_queue queue = stream.queue();
  const auto enqueue = Cl().clEnqueueNDRangeKernel;
  for (const RecordedLaunch& each : launches_) {
    const cl_int code = enqueue(queue, each.kernel.get(), each.dimensions, nullptr, each.global, each.local, 0, nullptr,
                                nullptr);
    if (code != CL_SUCCESS) [[unlikely]] device.Check(code, "launching kernel " + each.name + " again");
  }
}

}  // namespace smartmem::opencl
