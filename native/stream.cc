// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/runtime/device_api.h>

#include <map>
#include <memory>

namespace smartmem::opencl {
namespace {

Queue NewQueue(Device& device, cl_ulong properties) {
  cl_int code = CL_SUCCESS;
  Queue queue(Cl().clCreateCommandQueue(device.context, device.id, properties, &code));
  device.Check(code, "clCreateCommandQueue");
  return queue;
}

// The streams are never destroyed, see library.cc.
Stream& DefaultStream(int device_index) {
  static auto* streams = new std::map<int, std::unique_ptr<Stream>>();
  static std::mutex mutex;
  // A thread launches thousands of kernels on the same device, so it keeps its last stream without the lock.
  thread_local Stream* last = nullptr;
  thread_local int last_index = -1;
  if (last_index == device_index) return *last;
  Device& device = GetDevice(device_index);
  std::lock_guard<std::mutex> lock(mutex);
  auto& stream = (*streams)[device_index];
  if (stream == nullptr) stream = std::make_unique<Stream>(device);
  last = stream.get();
  last_index = device_index;
  return *last;
}

}  // namespace

Stream::Stream(Device& device) : device_(device), plain_(NewQueue(device, 0)), active_(plain_.get()) {}

cl_command_queue Stream::queue() const {
  if (active_ == nullptr) [[unlikely]] {
    TVM_FFI_THROW(RuntimeError) << "a stream of OpenCL device " << device_.Describe()
                                << " was used after it was freed: set another stream in every thread that had it.";
  }
  return active_;
}

void Stream::Close() {
  std::lock_guard lock(mutex_);
  if (active_ != nullptr && !device_.lost) Cl().clFinish(active_);
  active_ = nullptr;
  plain_ = Queue();
  profiling_ = Queue();
}

void Stream::Finish() {
  const auto hold = Hold();
  device_.Require();
  device_.Check(Cl().clFinish(queue()), "clFinish");
}

Event Stream::Mark() {
  const auto hold = Hold();
  device_.Require();
  cl_event handle = nullptr;
  device_.Check(Cl().clEnqueueMarkerWithWaitList(queue(), 0, nullptr, &handle), "clEnqueueMarkerWithWaitList");
  return Event(handle);
}

void Stream::Before(Stream& later) {
  device_.Require();
  later.device_.Require();
  if (device_.context != later.device_.context) return Finish();  // events do not cross contexts
  if (&later == this) return;
  const Event event = Mark();
  {
    const auto hold = Hold();
    device_.Check(Cl().clFlush(queue()), "clFlush");
  }
  const auto hold = later.Hold();
  cl_event handle = event.get();
  later.device_.Check(Cl().clEnqueueBarrierWithWaitList(later.queue(), 1, &handle, nullptr),
                      "clEnqueueBarrierWithWaitList");
}

void Stream::SwitchTo(const Queue& queue) {
  device_.Require();
  device_.Check(Cl().clFinish(this->queue()), "clFinish");
  active_ = queue.get();
}

void Stream::StartProfiling() {
  std::lock_guard lock(mutex_);
  if (!profiling_) profiling_ = NewQueue(device_, CL_QUEUE_PROFILING_ENABLE);
  if (profilers_ == 0) SwitchTo(profiling_);
  ++profilers_;
}

void Stream::StopProfiling() {
  std::lock_guard lock(mutex_);
  if (--profilers_ == 0) SwitchTo(plain_);
}

Stream& GetStream(int device_index, void* handle) {
  if (handle == nullptr) handle = TVMFFIEnvGetStream(kDLOpenCL, device_index);
  return handle == nullptr ? DefaultStream(device_index) : *static_cast<Stream*>(handle);
}

}  // namespace smartmem::opencl
