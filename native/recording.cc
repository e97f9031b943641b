// SPDX-License-Identifier: Apache-2.0
#include "recording.h"

#include "sharing.h"

namespace smartmem::opencl {
namespace {

thread_local Recording* current = nullptr;

}  // namespace

Recording* Recording::Current() { return current; }

Recording::Scope::Scope(Recording* recording) { current = recording; }

Recording::Scope::~Scope() { current = nullptr; }

void Recording::Add(NotedLaunch launch) {
  for (const Argument& each : launch.arguments) {
    if (!each.is_object || each.memory == nullptr || objects_.count(each.memory) > 0) continue;
    Check(Cl().clRetainMemObject(each.memory), "clRetainMemObject");
    objects_.emplace(each.memory, BufferObject(each.memory));
  }
  noted_.push_back(std::move(launch));
}

void Recording::Finish(Device& device) {
  if (whole_) launches_ = WithOwnKernels(device, noted_);
  noted_.clear();
}

void Recording::Launch(Stream& stream) {
  Device& device = stream.device();
  device.Require();
  if (launches_.empty()) return;
  const auto hold = stream.Hold();
  cl_command_queue queue = stream.queue();
  if (playback_ == nullptr || queue != queue_) [[unlikely]] {
    playback_ = PlaybackOf(device, queue, launches_);
    queue_ = queue;
  }
  playback_->Play(queue);
}

}  // namespace smartmem::opencl
