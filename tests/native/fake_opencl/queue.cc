// SPDX-License-Identifier: Apache-2.0
// Queues, commands and events of the fake driver; a device can be lost at any command.
#include "world.h"

namespace fake {
namespace {

// A lost device forgets what it was told.
void RequireDevice(Queue& queue) {
  if (queue.context->device->lost) queue.waiting.clear();
  Require(!queue.context->device->lost, CL_DEVICE_NOT_AVAILABLE,
          "device " + std::to_string(queue.context->device->index) + " is lost");
}

void Run(Queue& queue);

void RunBefore(const std::vector<std::shared_ptr<Event>>& events) {
  for (const auto& event : events) {
    auto queue = event->queue.lock();
    if (!event->done && queue != nullptr) Run(*queue);
  }
}

void Run(Queue& queue) {
  Device& device = *queue.context->device;
  while (!queue.waiting.empty()) {
    Command command = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    if (device.lost) continue;
    RunBefore(command.after);
    command.work();
    command.event->start = device.clock;
    command.event->end = device.clock += command.nanoseconds;
    command.event->done = true;
  }
}

std::vector<std::shared_ptr<Event>> WaitList(cl_uint count, const cl_event* list) {
  Require((count == 0) == (list == nullptr), CL_INVALID_EVENT_WAIT_LIST, "count without a list");
  std::vector<std::shared_ptr<Event>> events;
  for (cl_uint i = 0; i < count; ++i) events.push_back(Find<Event>(list[i]));
  return events;
}

void CountCommand(Device& device) {
  if (device.commands_left != INT64_MAX && --device.commands_left < 0) device.lost = true;
}

}  // namespace

void Submit(cl_command_queue handle, bool blocking, cl_uint waits, const cl_event* wait_list,
            cl_event* event_out, uint64_t nanoseconds, std::function<void()> work) {
  auto queue = Find<Queue>(handle);
  auto after = WaitList(waits, wait_list);
  CountCommand(*queue->context->device);
  RequireDevice(*queue);
  auto event = std::make_shared<Event>();
  event->queue = queue;
  event->profiling = queue->profiling;
  if (event_out != nullptr) *event_out = Add<cl_event>(event);
  queue->waiting.push_back({std::move(after), event, nanoseconds, std::move(work)});
  if (blocking || !Config().defer) Run(*queue);
}

}  // namespace fake

using namespace fake;

FAKE_EXPORT cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id device,
                                                  cl_bitfield properties, cl_int* error) {
  return Create(__func__, error, [&] {
    auto queue = std::make_shared<Queue>();
    queue->context = Find<Context>(context);
    bool own = queue->context->device == Find<Device>(device);
    Require(own, CL_INVALID_DEVICE, "the device is not of this context");
    Require((properties & ~cl_bitfield{CL_QUEUE_PROFILING_ENABLE}) == 0,
            CL_INVALID_QUEUE_PROPERTIES, "only in-order queues");
    queue->profiling = properties != 0;
    RequireDevice(*queue);
    return Add<cl_command_queue>(queue);
  });
}

FAKE_EXPORT cl_int clReleaseCommandQueue(cl_command_queue queue) {
  return Call(__func__, [&] {
    Run(*Find<Queue>(queue));
    Release<Queue>(queue);
  });
}

FAKE_EXPORT cl_int clFlush(cl_command_queue queue) {
  return Call(__func__, [&] { RequireDevice(*Find<Queue>(queue)); });
}

FAKE_EXPORT cl_int clFinish(cl_command_queue queue) {
  return Call(__func__, [&] {
    RequireDevice(*Find<Queue>(queue));
    Run(*Find<Queue>(queue));
  });
}

FAKE_EXPORT cl_int clEnqueueMarkerWithWaitList(cl_command_queue queue, cl_uint waits,
                                               const cl_event* wait_list, cl_event* event) {
  return Call(__func__, [&] { Submit(queue, false, waits, wait_list, event, 0, [] {}); });
}

FAKE_EXPORT cl_int clEnqueueBarrierWithWaitList(cl_command_queue queue, cl_uint waits,
                                                const cl_event* wait_list, cl_event* event) {
  return Call(__func__, [&] { Submit(queue, false, waits, wait_list, event, 0, [] {}); });
}

FAKE_EXPORT cl_int clWaitForEvents(cl_uint count, const cl_event* list) {
  return Call(__func__, [&] {
    Require(count > 0, CL_INVALID_VALUE, "no events");
    auto events = WaitList(count, list);
    RunBefore(events);
    for (const auto& event : events) {
      Require(event->done, CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "the device is lost");
    }
  });
}

FAKE_EXPORT cl_int clGetEventProfilingInfo(cl_event event, cl_uint what, size_t room, void* out,
                                           size_t* needed) {
  return Call(__func__, [&] {
    auto found = Find<Event>(event);
    Require(found->profiling && found->done, CL_PROFILING_INFO_NOT_AVAILABLE,
            found->done ? "the queue does not profile" : "the command has not run");
    bool start = what == CL_PROFILING_COMMAND_START;
    Require(start || what == CL_PROFILING_COMMAND_END, CL_INVALID_VALUE, "unknown question");
    AnswerValue(cl_ulong{start ? found->start : found->end}, room, out, needed);
  });
}

FAKE_EXPORT cl_int clReleaseEvent(cl_event event) {
  return Call(__func__, [&] { Release<Event>(event); });
}
