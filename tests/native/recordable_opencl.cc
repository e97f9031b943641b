// SPDX-License-Identifier: Apache-2.0
// The system's OpenCL with cl_qcom_recordable_queues, which no driver of a CPU has: a library between the one under test and
// the loader, with the few functions that differ; all others are the loader's, which this is linked to. Recordings are
// made of launches, kept with what they were given, and enqueued one by one. It refuses what the extension does not allow.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "../../native/cl.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#define DECLARE(index, type, name, parameters) EXPORT type name parameters;
SMARTMEM_CL_FUNCTIONS(DECLARE)
#undef DECLARE

namespace {

constexpr cl_bitfield kRecordable = 1u << 30;
constexpr cl_uint kMost = 0x41DE, kMostLaunches = 3;
const std::string kName = " cl_qcom_recordable_queues";

template <typename F>
F Real(const char* name) {
  static void* loader = dlopen("libOpenCL.so.1", RTLD_NOW);
  return reinterpret_cast<F>(dlsym(loader, name));
}
#define REAL(name) Real<decltype(&name)>(#name)


struct Launch {
  cl_kernel kernel;
  std::vector<size_t> global, local;
};

struct Recording {
  std::vector<Launch> launches;
  bool ended = false;
};

struct Recordable {
  Recording* open = nullptr;
};

struct World {
  std::set<void*> queues, recordings;
  int64_t enqueued = 0, launched = 0, refused = 0;
};

World& TheWorld() {
  static World* world = new World();
  return *world;
}

cl_int Refused(cl_int code) {
  ++TheWorld().refused;
  return code;
}

Recordable* QueueOf(cl_command_queue queue) {
  return TheWorld().queues.count(queue) > 0 ? reinterpret_cast<Recordable*>(queue) : nullptr;
}

Recording* NewRecording(cl_command_queue handle, cl_int* code) {
  Recordable* queue = QueueOf(handle);
  *code = queue == nullptr || queue->open != nullptr ? Refused(CL_INVALID_COMMAND_QUEUE) : CL_SUCCESS;
  if (*code != CL_SUCCESS) return nullptr;
  queue->open = new Recording();
  TheWorld().recordings.insert(queue->open);
  return queue->open;
}

cl_int EndRecording(Recording* recording) {
  for (void* each : TheWorld().queues) {
    auto* queue = static_cast<Recordable*>(each);
    if (queue->open == recording) queue->open = nullptr;
  }
  recording->ended = true;
  return CL_SUCCESS;
}

cl_int ReleaseRecording(Recording* recording) {
  if (TheWorld().recordings.erase(recording) == 0) return Refused(CL_INVALID_VALUE);
  delete recording;
  return CL_SUCCESS;
}

cl_int EnqueueRecording(cl_command_queue queue, Recording* recording, size_t arguments, const void*, size_t offsets,
                        const void*, size_t globals, const void*, size_t locals, const void*, cl_uint events,
                        const cl_event*, cl_event*) {
  const bool plain = arguments + offsets + globals + locals + events == 0;
  if (!plain || !recording->ended || QueueOf(queue) != nullptr) return Refused(CL_INVALID_OPERATION);
  ++TheWorld().enqueued;
  for (const Launch& each : recording->launches) {
    const cl_int code = REAL(clEnqueueNDRangeKernel)(queue, each.kernel, static_cast<cl_uint>(each.global.size()), nullptr,
                                                     each.global.data(), each.local.data(), 0, nullptr, nullptr);
    if (code != CL_SUCCESS) return code;
  }
  return CL_SUCCESS;
}

}  // namespace

EXPORT int64_t shim_enqueued() { return TheWorld().enqueued; }
EXPORT int64_t shim_launched() { return TheWorld().launched; }
EXPORT int64_t shim_refused() { return TheWorld().refused; }
EXPORT int64_t shim_recordings() { return static_cast<int64_t>(TheWorld().recordings.size()); }

EXPORT cl_int clGetDeviceInfo(cl_device_id device, cl_uint what, size_t room, void* out, size_t* needed) {
  if (what == kMost) {
    if (room < sizeof(cl_uint)) return CL_INVALID_VALUE;
    std::memcpy(out, &kMostLaunches, sizeof(cl_uint));
    return CL_SUCCESS;
  }
  if (what != CL_DEVICE_EXTENSIONS) return REAL(clGetDeviceInfo)(device, what, room, out, needed);
  size_t bytes = 0;
  REAL(clGetDeviceInfo)(device, what, 0, nullptr, &bytes);
  std::string text(bytes, '\0');
  const cl_int code = REAL(clGetDeviceInfo)(device, what, bytes, text.data(), nullptr);
  text = text.c_str() + kName;
  if (needed != nullptr) *needed = text.size() + 1;
  if (out != nullptr) std::memcpy(out, text.c_str(), std::min(room, text.size() + 1));
  return code;
}

EXPORT cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id device, cl_bitfield properties,
                                             cl_int* code) {
  if ((properties & kRecordable) == 0) return REAL(clCreateCommandQueue)(context, device, properties, code);
  *code = properties == kRecordable ? CL_SUCCESS : Refused(CL_INVALID_QUEUE_PROPERTIES);
  if (*code != CL_SUCCESS) return nullptr;
  auto* queue = new Recordable();
  TheWorld().queues.insert(queue);
  return reinterpret_cast<cl_command_queue>(queue);
}

EXPORT cl_int clReleaseCommandQueue(cl_command_queue handle) {
  Recordable* queue = QueueOf(handle);
  if (queue == nullptr) return REAL(clReleaseCommandQueue)(handle);
  TheWorld().queues.erase(queue);
  delete queue;
  return CL_SUCCESS;
}

EXPORT cl_int clEnqueueNDRangeKernel(cl_command_queue handle, cl_kernel kernel, cl_uint dimensions, const size_t* offset,
                                     const size_t* global, const size_t* local, cl_uint waits, const cl_event* events,
                                     cl_event* event) {
  Recordable* queue = QueueOf(handle);
  if (queue == nullptr) {
    ++TheWorld().launched;
    return REAL(clEnqueueNDRangeKernel)(handle, kernel, dimensions, offset, global, local, waits, events, event);
  }
  const bool allowed = queue->open != nullptr && offset == nullptr && waits == 0 && event == nullptr;
  if (!allowed || queue->open->launches.size() == kMostLaunches) return Refused(CL_INVALID_OPERATION);
  queue->open->launches.push_back({kernel, {global, global + dimensions}, {local, local + dimensions}});
  return CL_SUCCESS;
}

EXPORT void* clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char* name) {
  static const std::map<std::string, void*> ours = {
      {"clNewRecordingQCOM", reinterpret_cast<void*>(NewRecording)},
      {"clEndRecordingQCOM", reinterpret_cast<void*>(EndRecording)},
      {"clReleaseRecordingQCOM", reinterpret_cast<void*>(ReleaseRecording)},
      {"clEnqueueRecordingQCOM", reinterpret_cast<void*>(EnqueueRecording)},
  };
  const auto found = ours.find(name);
  return found != ours.end() ? found->second : REAL(clGetExtensionFunctionAddressForPlatform)(platform, name);
}
