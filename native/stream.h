// SPDX-License-Identifier: Apache-2.0
// Streams: command queues in TVM's sense, in order, one of them the device's default.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "device.h"

namespace smartmem::opencl {

class Stream {
 public:
  explicit Stream(Device& device);

  // Where the next command goes, until `Hold()` is let go: a timer changes queues between commands.
  cl_command_queue queue() const;
  std::shared_lock<std::shared_mutex> Hold() { return std::shared_lock(mutex_); }
  Device& device() { return device_; }

  void Finish();

  // Finishes and gives the queues back. The object stays: another thread may still have it as its
  // current stream, and is told at its next use.
  void Close();

  // An event that comes when the commands enqueued so far are done.
  Event Mark();

  // Commands of `later` enqueued from now on wait for those of this stream enqueued so far.
  void Before(Stream& later);

  // While profiling is asked for, commands go to a queue that keeps times; nests.
  void StartProfiling();
  void StopProfiling();

 private:
  void SwitchTo(const Queue& queue);  // with the mutex held for this thread alone

  Device& device_;
  Queue plain_;
  Queue profiling_;  // made when first needed: some drivers are slower with times
  cl_command_queue active_ = nullptr;
  std::shared_mutex mutex_;  // guards what follows the device
  int profilers_ = 0;
};

// The stream of a TVM handle; null is this thread's current stream of the device.
Stream& GetStream(int device_index, void* handle);

// This thread's current stream of the device, the default one unless DeviceAPI::SetStream chose.
inline Stream& CurrentStream(int device_index) { return GetStream(device_index, nullptr); }

}  // namespace smartmem::opencl
