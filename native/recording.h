// SPDX-License-Identifier: Apache-2.0
// Launches of a run of kernels, noted while they are made, to be made again by themselves.
#pragma once

#include <tvm/ffi/object.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "argument.h"
#include "module.h"
#include "playback.h"
#include "stream.h"

namespace smartmem::opencl {

// One launch as it was made, with all that is needed to make it again.
struct NotedLaunch {
  tvm::ffi::ObjectPtr<ClModule> module;  // keeps the kernel
  const DeviceKernel* kernel = nullptr;
  std::string name;
  std::vector<Argument> arguments;  // TVM's, and behind them where the tensors begin in their buffers
  Sizes sizes;
};

class Recording {
 public:
  // The one that launches of this thread are noted in; null almost always.
  static Recording* Current();

  // Makes a recording this thread's current one for as long as it lives.
  class Scope {
   public:
    explicit Scope(Recording* recording);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  void Add(NotedLaunch launch);
  // Something that is no launch was done, and would not be done again.
  void Spoil() { whole_ = false; }
  bool whole() const { return whole_; }

  // To be called when all is noted, and before the first launch.
  void Finish(Device& device);
  void Launch(Stream& stream);

 private:
  std::vector<NotedLaunch> noted_;
  std::map<cl_mem, BufferObject> objects_;  // of all launches, kept alive: OpenCL does not
  std::vector<RecordedLaunch> launches_;
  std::unique_ptr<Playback> playback_;
  cl_command_queue queue_ = nullptr;  // that of the playback
  bool whole_ = true;
};

}  // namespace smartmem::opencl
