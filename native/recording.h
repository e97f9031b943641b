// SPDX-License-Identifier: Apache-2.0
// Launches of a run of kernels, noted while they are made, to be made again by themselves.
#pragma once

#include <string>
#include <vector>

#include "stream.h"

namespace smartmem::opencl {

// One launch, with a kernel object of its own and its arguments, which are kept alive: OpenCL does not.
struct RecordedLaunch {
  std::string name;
  Kernel kernel;
  std::vector<BufferObject> objects;
  cl_uint dimensions = 1;
  size_t global[3] = {1, 1, 1};
  size_t local[3] = {1, 1, 1};
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

  void Add(RecordedLaunch launch) { launches_.push_back(std::move(launch)); }
  // Something that is no launch was done, and would not be done again.
  void Spoil() { whole_ = false; }
  bool whole() const { return whole_; }

  void Launch(Stream& stream);

 private:
  std::vector<RecordedLaunch> launches_;
  bool whole_ = true;
};

}  // namespace smartmem::opencl
