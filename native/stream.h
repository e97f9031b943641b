// SPDX-License-Identifier: Apache-2.0
// Streams: command queues in TVM's sense, in order, one of them the device's default.
#pragma once

#include <atomic>
#include <mutex>

#include "device.h"

namespace smartmem::opencl {

class Stream {
 public:
  explicit Stream(Device& device);

  // Where the next command goes.
  cl_command_queue queue() const { return active_.load(std::memory_order_acquire); }
  Device& device() { return device_; }

  void Finish();

  // Commands of `later` enqueued from now on wait for those of this stream enqueued so far.
  void Before(Stream& later);

  // While profiling is asked for, commands go to a queue that keeps times; nests.
  void StartProfiling();
  void StopProfiling();

 private:
  void SwitchTo(const Queue& queue);

  Device& device_;
  Queue plain_;
  Queue profiling_;  // made when first needed: some drivers are slower with times
  std::atomic<cl_command_queue> active_ = nullptr;
  std::mutex mutex_;
  int profilers_ = 0;
};

// The stream of a TVM handle; null is this thread's current stream of the device.
Stream& GetStream(int device_index, void* handle);

// This thread's current stream of the device, the default one unless DeviceAPI::SetStream chose.
inline Stream& CurrentStream(int device_index) { return GetStream(device_index, nullptr); }

}  // namespace smartmem::opencl
