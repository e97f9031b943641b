// SPDX-License-Identifier: Apache-2.0
#include "playback.h"

#include <tvm/ffi/error.h>

#include "environment.h"

namespace smartmem::opencl {
namespace {

using Launches = std::vector<RecordedLaunch>;

class OneByOne final : public Playback {
 public:
  OneByOne(Device& device, const Launches& launches) : device_(device), launches_(launches) {}

  void Play(cl_command_queue queue) final {
    const auto enqueue = Cl().clEnqueueNDRangeKernel;
    for (const RecordedLaunch& each : launches_) {
      const cl_int code = enqueue(queue, each.kernel.get(), each.sizes.dimensions, nullptr, each.sizes.global,
                                  each.sizes.local, 0, nullptr, nullptr);
      if (code != CL_SUCCESS) [[unlikely]] device_.Check(code, "launching kernel " + each.name + " again");
    }
  }

 private:
  Device& device_;
  const Launches& launches_;
};

std::unique_ptr<Playback> Launched(Device& device, cl_command_queue, const Launches& launches) {
  return std::make_unique<OneByOne>(device, launches);
}

struct Way {
  const char* name;
  const char* extension;  // empty: every driver has it
  const char* slower_on;  // a platform that has it, but is slower with it than with launches one by one
  std::unique_ptr<Playback> (*make)(Device&, cl_command_queue, const Launches&);
};

constexpr Way kWays[] = {
    {"command-buffer", "cl_khr_command_buffer", kPocl, CommandBuffer},
    {"recordable-queue", "cl_qcom_recordable_queues", "", RecordableQueue},
    {"launches", "", "", Launched},
};

bool Meant(const Device& device, const Way& way) {
  if (*way.extension == 0) return true;
  const std::string named = Environment("SMARTMEM_OPENCL_REPLAY");
  const bool wanted = named.empty() ? device.platform_name != way.slower_on : named == way.name;
  return wanted && device.HasExtension(way.extension);
}

void CheckName() {
  const std::string named = Environment("SMARTMEM_OPENCL_REPLAY");
  std::string names;
  for (const Way& way : kWays) {
    if (named.empty() || named == way.name) return;
    names += (names.empty() ? "" : ", ") + std::string(way.name);
  }
  TVM_FFI_THROW(ValueError) << "SMARTMEM_OPENCL_REPLAY is '" << named << "', which is no way to make launches again: "
                            << "use one of " << names << ".";
}

}  // namespace

std::unique_ptr<Playback> PlaybackOf(Device& device, cl_command_queue queue, const Launches& launches) {
  CheckName();
  std::unique_ptr<Playback> found;
  for (const Way& way : kWays) {
    if (found == nullptr && Meant(device, way)) found = way.make(device, queue, launches);
  }
  return found;
}

std::string WayOf(const Device& device) {
  for (const Way& way : kWays) {
    if (Meant(device, way)) return way.name;
  }
  return "";
}

}  // namespace smartmem::opencl
