// SPDX-License-Identifier: Apache-2.0
// A recording of the launches of a sequence of kernels, which can be replayed without the virtual machine.
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

// One launch, with everything that a replay needs.
struct NotedLaunch {
  tvm::ffi::ObjectPtr<ClModule> module;  // keeps the kernel
  const DeviceKernel* kernel = nullptr;
  std::string name;
  std::vector<Argument> arguments;  // TVM's, and then the offsets of the tensors in their buffers
  Sizes sizes;
};

class Recording {
 public:
  // The recording that this thread's launches are added to; null unless one is being made.
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
  // Marks the recording as incomplete: something other than a launch was done, which a replay would miss.
  void Spoil() { whole_ = false; }
  bool whole() const { return whole_; }

  // Makes the kernel objects; to be called after the last Add and before the first Launch.
  void Finish(Device& device);
  void Launch(Stream& stream);

 private:
  std::vector<NotedLaunch> noted_;
  std::map<cl_mem, BufferObject> objects_;  // of all launches: OpenCL does not keep them alive
  std::vector<RecordedLaunch> launches_;
  std::unique_ptr<Playback> playback_;
  cl_command_queue queue_ = nullptr;  // the queue of the playback
  bool whole_ = true;
};

}  // namespace smartmem::opencl
