// SPDX-License-Identifier: Apache-2.0
// The ways in which a driver replays recorded launches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device.h"

namespace smartmem::opencl {

// The sizes of a launch, in work items.
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
  // Enqueues all launches, in their order; throws if the driver refuses one.
  virtual void Play(cl_command_queue queue) = 0;
};

// Returns a playback of launches for a queue, which must be the one that they are played on, by the first way that the
// driver has:
//
//   command-buffer     cl_khr_command_buffer: one call of the driver for all launches
//   recordable-queue   cl_qcom_recordable_queues: one call for as many launches as a recording holds
//   launches           one call for each launch
//
// PoCL's command buffers are not used: PoCL runs their launches one by one, and takes longer for each (docs/opencl.md).
// SMARTMEM_OPENCL_REPLAY names the way to use; if the driver does not have it, the last one is used. The launches must
// outlive the playback.
std::unique_ptr<Playback> PlaybackOf(Device& device, cl_command_queue queue,
                                     const std::vector<RecordedLaunch>& launches);

// The name of the way that PlaybackOf tries first on a device.
std::string WayOf(const Device& device);

// The two ways that not every driver has; null if the driver refuses.
std::unique_ptr<Playback> CommandBuffer(Device& device, cl_command_queue queue,
                                        const std::vector<RecordedLaunch>& launches);
std::unique_ptr<Playback> RecordableQueue(Device& device, cl_command_queue queue,
                                          const std::vector<RecordedLaunch>& launches);

}  // namespace smartmem::opencl
