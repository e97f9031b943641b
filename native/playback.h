// SPDX-License-Identifier: Apache-2.0
// The ways in which a driver makes recorded launches again.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device.h"

namespace smartmem::opencl {

// Of a launch.
struct Sizes {
  cl_uint dimensions = 1;
  size_t global[3] = {1, 1, 1};
  size_t local[3] = {1, 1, 1};
};

// One launch, with a kernel object of its own whose arguments are set.
struct RecordedLaunch {
  std::string name;
  Kernel kernel;
  Sizes sizes;
};

class Playback {
 public:
  virtual ~Playback() = default;
  // Hands all launches over, in their order; throws what the driver refuses.
  virtual void Play(cl_command_queue queue) = 0;
};

// Launches for a queue, which has to be the one they are played on, by the first way that the driver has:
//
//   command-buffer     cl_khr_command_buffer: one call of the driver for all
//   recordable-queue   cl_qcom_recordable_queues: one call for as many as a recording holds
//   launches           one call for each
//
// PoCL's command buffers are passed over: it takes their launches one by one, and longer for each (docs/opencl.md).
// SMARTMEM_OPENCL_REPLAY names the one to be used, and the last takes its place where the driver does not have it. Launches
// must outlive what is returned.
std::unique_ptr<Playback> PlaybackOf(Device& device, cl_command_queue queue,
                                     const std::vector<RecordedLaunch>& launches);

// The name of the way that a device is meant to have.
std::string WayOf(const Device& device);

// Those that not every driver has; null if it refuses.
std::unique_ptr<Playback> CommandBuffer(Device& device, cl_command_queue queue,
                                        const std::vector<RecordedLaunch>& launches);
std::unique_ptr<Playback> RecordableQueue(Device& device, cl_command_queue queue,
                                          const std::vector<RecordedLaunch>& launches);

}  // namespace smartmem::opencl
