// SPDX-License-Identifier: Apache-2.0
// TVM's timer for OpenCL: the device's own clock between two markers on the current stream.
#include <tvm/ffi/function.h>
#include <tvm/runtime/timer.h>

#include "register.h"
#include "stream.h"

namespace smartmem::opencl {
namespace {

class ClTimerNode : public tvm::runtime::TimerNode {
 public:
  explicit ClTimerNode(DLDevice device) : stream_(CurrentStream(device.device_id)) {}
  ~ClTimerNode() override {
    if (state_ != State::kRunning) return;
    try {
      EndProfiling();
    } catch (const tvm::ffi::Error&) {
      // The device was lost while it was timed: its next use reports that.
    }
  }

  void Start() override {
    stream_.StartProfiling();
    state_ = State::kRunning;
    start_ = stream_.Mark();
  }

  void Stop() override {
    stop_ = stream_.Mark();
    EndProfiling();
  }

  int64_t SyncAndGetElapsedNanos() override {
    Device& device = stream_.device();
    const cl_event events[] = {start_.get(), stop_.get()};
    device.Check(Cl().clWaitForEvents(2, events), "clWaitForEvents");
    return static_cast<int64_t>(EndOf(stop_) - EndOf(start_));
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("smartmem.opencl.TimerNode", ClTimerNode, tvm::runtime::TimerNode);

 private:
  enum class State { kNew, kRunning, kDone };

  cl_ulong EndOf(const Event& event) {
    cl_ulong nanoseconds = 0;
    stream_.device().Check(Cl().clGetEventProfilingInfo(event.get(), CL_PROFILING_COMMAND_END, sizeof(nanoseconds),
                                                        &nanoseconds, nullptr),
                           "clGetEventProfilingInfo");
    return nanoseconds;
  }

  void EndProfiling() {
    state_ = State::kDone;
    stream_.StopProfiling();
  }

  Stream& stream_;
  Event start_, stop_;
  State state_ = State::kNew;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef().def("runtime.timer.opencl", [](DLDevice device) {
    return tvm::runtime::Timer(tvm::ffi::make_object<ClTimerNode>(device));
  });
}

}  // namespace
}  // namespace smartmem::opencl
