// SPDX-License-Identifier: Apache-2.0
// Launches in recordings (cl_qcom_recordable_queues, drivers of Adreno): a recordable queue records the launches that
// are enqueued in it, and any other queue can run the recording.
#include <algorithm>

#include "playback.h"

namespace smartmem::opencl {
namespace {

typedef struct _cl_recording_qcom* cl_recording_qcom;

constexpr cl_uint kMost = 0x41DE;              // CL_DEVICE_RECORDABLE_QUEUE_MAX_SIZE: launches of one recording
constexpr cl_bitfield kRecordable = 1u << 30;  // CL_QUEUE_RECORDABLE_QCOM

struct Functions {
  cl_recording_qcom (*create)(cl_command_queue, cl_int*);
  cl_int (*end)(cl_recording_qcom);
  cl_int (*release)(cl_recording_qcom);
  // The pairs of count and pointer are changes of arguments, offsets, global and local sizes.
  cl_int (*enqueue)(cl_command_queue, cl_recording_qcom, size_t, const void*, size_t, const void*, size_t, const void*,
                    size_t, const void*, cl_uint, const cl_event*, cl_event*);

  explicit Functions(const Device& device)
      : create(device.Function<decltype(create)>("clNewRecordingQCOM")),
        end(device.Function<decltype(end)>("clEndRecordingQCOM")),
        release(device.Function<decltype(release)>("clReleaseRecordingQCOM")),
        enqueue(device.Function<decltype(enqueue)>("clEnqueueRecordingQCOM")) {}
  bool all() const { return create && end && release && enqueue; }
};

class Recorded final : public Playback {
 public:
  Recorded(Device& device, const Functions& functions) : device_(device), functions_(functions) {}
  ~Recorded() override {
    for (cl_recording_qcom each : forked ? std::vector<cl_recording_qcom>() : recordings_) functions_.release(each);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  // Records the launches; returns whether the driver accepted all of them.
  bool Record(const std::vector<RecordedLaunch>& launches) {
    cl_uint most = 0;
    cl_int code = Cl().clGetDeviceInfo(device_.id, kMost, sizeof(most), &most, nullptr);
    if (code != CL_SUCCESS || most == 0) return false;
    queue_ = Queue(Cl().clCreateCommandQueue(device_.context, device_.id, kRecordable, &code));
    for (size_t first = 0; first < launches.size() && code == CL_SUCCESS; first += most) {
      code = RecordSome(&launches[first], std::min<size_t>(most, launches.size() - first));
    }
    return code == CL_SUCCESS;
  }

  void Play(cl_command_queue queue) final {
    for (cl_recording_qcom each : recordings_) {
      device_.Check(functions_.enqueue(queue, each, 0, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, nullptr),
                    "clEnqueueRecordingQCOM");
    }
  }

 private:
  cl_int RecordSome(const RecordedLaunch* launches, size_t count) {
    cl_int code = CL_SUCCESS;
    cl_recording_qcom recording = functions_.create(queue_.get(), &code);
    if (code != CL_SUCCESS) return code;
    recordings_.push_back(recording);
    for (const RecordedLaunch* each = launches; each != launches + count && code == CL_SUCCESS; ++each) {
      code = Cl().clEnqueueNDRangeKernel(queue_.get(), each->kernel.get(), each->sizes.dimensions, nullptr,
                                         each->sizes.global, each->sizes.local, 0, nullptr, nullptr);
    }
    const cl_int ended = functions_.end(recording);  // also after a failure: it frees the queue
    return code == CL_SUCCESS ? ended : code;
  }

  Device& device_;
  const Functions functions_;
  Queue queue_;
  std::vector<cl_recording_qcom> recordings_;
};

}  // namespace

std::unique_ptr<Playback> RecordableQueue(Device& device, cl_command_queue, const std::vector<RecordedLaunch>& launches) {
  const Functions functions(device);
  if (!functions.all()) return nullptr;
  auto recorded = std::make_unique<Recorded>(device, functions);
  return recorded->Record(launches) ? std::move(recorded) : nullptr;
}

}  // namespace smartmem::opencl
