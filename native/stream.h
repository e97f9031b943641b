// SPDX-License-Identifier: Apache-2.0
// TVM's streams as in-order command queues; each device has a default one.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "device.h"

namespace smartmem::opencl {

class Stream {
 public:
  explicit Stream(Device& device);

  // The queue for the next command, valid while `Hold()` is held: a timer changes queues between commands.
  cl_command_queue queue() const;
  std::shared_lock<std::shared_mutex> Hold() { return std::shared_lock(mutex_); }
  Device& device() { return device_; }

  void Finish();

  // Finishes and releases the queues. The object is not deleted: another thread may still have it as
  // its current stream, and gets an error at its next use.
  void Close();

  // Returns an event that completes when the commands enqueued so far have finished.
  Event Mark();

  // Commands of `later` enqueued from now on wait for those of this stream enqueued so far.
  void Before(Stream& later);

  // Between these calls, which may be nested, commands go to a queue that records times.
  void StartProfiling();
  void StopProfiling();

 private:
  void SwitchTo(const Queue& queue);  // with the mutex held exclusively

  Device& device_;
  Queue plain_;
  Queue profiling_;  // made when first needed: some drivers are slower with profiling
  cl_command_queue active_ = nullptr;
  std::shared_mutex mutex_;  // guards all members but device_
  int profilers_ = 0;
};

// Returns the stream of a TVM handle; for null, this thread's current stream of the device.
Stream& GetStream(int device_index, void* handle);

// Returns this thread's current stream of the device: the default one unless DeviceAPI::SetStream chose another.
inline Stream& CurrentStream(int device_index) { return GetStream(device_index, nullptr); }

}  // namespace smartmem::opencl
