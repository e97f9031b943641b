// SPDX-License-Identifier: Apache-2.0
// Launches in a command buffer (cl_khr_command_buffer): the driver gets it once, and runs it at each inference.
//
// The extension is provisional. The functions called here have had the same parameters in its versions 0.9.0 to 0.9.8.
#include "playback.h"

namespace smartmem::opencl {
namespace {

typedef struct _cl_command_buffer_khr* cl_command_buffer_khr;

constexpr cl_uint kCapabilities = 0x12A9;   // CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR
constexpr cl_ulong kManyAtOnce = 1 << 2;    // CL_COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR
constexpr cl_ulong kFlags = 0x1293;         // CL_COMMAND_BUFFER_FLAGS_KHR
constexpr cl_ulong kSimultaneousUse = 1;    // CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR

struct Functions {
  cl_command_buffer_khr (*create)(cl_uint, const cl_command_queue*, const cl_ulong*, cl_int*);
  cl_int (*release)(cl_command_buffer_khr);
  cl_int (*finalize)(cl_command_buffer_khr);
  cl_int (*launch)(cl_command_buffer_khr, cl_command_queue, const cl_ulong*, cl_kernel, cl_uint, const size_t*,
                   const size_t*, const size_t*, cl_uint, const cl_uint*, cl_uint*, void*);
  cl_int (*enqueue)(cl_uint, cl_command_queue*, cl_command_buffer_khr, cl_uint, const cl_event*, cl_event*);

  explicit Functions(const Device& device)
      : create(device.Function<decltype(create)>("clCreateCommandBufferKHR")),
        release(device.Function<decltype(release)>("clReleaseCommandBufferKHR")),
        finalize(device.Function<decltype(finalize)>("clFinalizeCommandBufferKHR")),
        launch(device.Function<decltype(launch)>("clCommandNDRangeKernelKHR")),
        enqueue(device.Function<decltype(enqueue)>("clEnqueueCommandBufferKHR")) {}
  bool all() const { return create && release && finalize && launch && enqueue; }
};

bool ManyAtOnce(const Device& device) {
  cl_ulong capabilities = 0;
  const cl_int code =
      Cl().clGetDeviceInfo(device.id, kCapabilities, sizeof(capabilities), &capabilities, nullptr);
  return code == CL_SUCCESS && (capabilities & kManyAtOnce) != 0;
}

class Buffered final : public Playback {
 public:
  Buffered(Device& device, const Functions& functions)
      : device_(device), functions_(functions), many_(ManyAtOnce(device)) {}
  ~Buffered() override {
    if (buffer_ == nullptr || forked) return;
    Wait();  // by the specification the driver waits, but some free a buffer that still runs
    functions_.release(buffer_);
  }
  Buffered(const Buffered&) = delete;
  Buffered& operator=(const Buffered&) = delete;

  // Records the launches; returns whether the driver accepted all of them.
  bool Record(cl_command_queue queue, const std::vector<RecordedLaunch>& launches) {
    const cl_ulong properties[] = {kFlags, kSimultaneousUse, 0};
    cl_int code = CL_SUCCESS;
    buffer_ = functions_.create(1, &queue, many_ ? properties : nullptr, &code);
    if (code != CL_SUCCESS) buffer_ = nullptr;
    for (const RecordedLaunch& each : launches) {
      if (code != CL_SUCCESS) return false;
      code = functions_.launch(buffer_, nullptr, nullptr, each.kernel.get(), each.sizes.dimensions, nullptr,
                               each.sizes.global, each.sizes.local, 0, nullptr, nullptr, nullptr);
    }
    return code == CL_SUCCESS && functions_.finalize(buffer_) == CL_SUCCESS;
  }

  void Play(cl_command_queue) final {
    if (!many_) device_.Check(Wait(), "clWaitForEvents");  // without simultaneous use it may be enqueued once at a time
    cl_event event = nullptr;
    device_.Check(functions_.enqueue(0, nullptr, buffer_, 0, nullptr, &event), "clEnqueueCommandBufferKHR");
    last_ = Event(event);
  }

 private:
  // Waits until the last run has finished.
  cl_int Wait() const {
    const cl_event event = last_.get();
    return event == nullptr || device_.lost ? CL_SUCCESS : Cl().clWaitForEvents(1, &event);
  }

  Device& device_;
  const Functions functions_;
  const bool many_;
  cl_command_buffer_khr buffer_ = nullptr;
  Event last_;
};

}  // namespace

std::unique_ptr<Playback> CommandBuffer(Device& device, cl_command_queue queue,
                                        const std::vector<RecordedLaunch>& launches) {
  const Functions functions(device);
  if (!functions.all()) return nullptr;
  auto buffered = std::make_unique<Buffered>(device, functions);
  return buffered->Record(queue, launches) ? std::move(buffered) : nullptr;
}

}  // namespace smartmem::opencl
