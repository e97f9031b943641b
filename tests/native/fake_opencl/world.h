// SPDX-License-Identifier: Apache-2.0
// The fake driver's objects and its book of calls.
//
// A handle is a number that is never given out twice, so every use of a released one is seen.
// Objects own what they need with shared pointers, as the specification's implicit references.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../../../native/cl.h"
#include "settings.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

// The fake has exactly the functions that the library calls, with the library's signatures.
#define FAKE_DECLARE(index, type, name, parameters) FAKE_EXPORT type name parameters;
SMARTMEM_CL_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

namespace fake {

constexpr uint64_t kCopyNs = 500;

struct Object {
  virtual ~Object() = default;
};

struct Device;

struct Platform : Object {
  static constexpr const char* kKind = "platform";
  static constexpr cl_int kInvalid = CL_INVALID_PLATFORM;
  std::string name;
  std::vector<cl_device_id> devices;
};

struct Device : Object {
  static constexpr const char* kKind = "device";
  static constexpr cl_int kInvalid = CL_INVALID_DEVICE;
  int index = 0;
  std::string name;
  uint64_t used = 0;  // bytes
  uint64_t clock = 1000000;
  int64_t commands_left = INT64_MAX;  // lost when none is
  bool lost = false;
};

struct Context : Object {
  static constexpr const char* kKind = "context";
  static constexpr cl_int kInvalid = CL_INVALID_CONTEXT;
  std::shared_ptr<Device> device;
};

struct Command;

struct Queue : Object {
  static constexpr const char* kKind = "queue";
  static constexpr cl_int kInvalid = CL_INVALID_COMMAND_QUEUE;
  std::shared_ptr<Context> context;
  bool profiling = false;
  std::deque<Command> waiting;
};

struct Event : Object {
  static constexpr const char* kKind = "event";
  static constexpr cl_int kInvalid = CL_INVALID_EVENT;
  std::weak_ptr<Queue> queue;
  bool profiling = false, done = false;
  uint64_t start = 0, end = 0;
};

struct Command {
  std::vector<std::shared_ptr<Event>> after;
  std::shared_ptr<Event> event;
  uint64_t nanoseconds = 0;
  std::function<void()> work;
};

// The bytes of one allocation; images made on a buffer share them.
struct Storage {
  Storage(std::shared_ptr<Device> device, size_t size);
  ~Storage();
  std::shared_ptr<Device> device;
  std::unique_ptr<uint8_t[]> bytes;
  size_t size;
};

struct Memory : Object {
  static constexpr const char* kKind = "memory";
  static constexpr cl_int kInvalid = CL_INVALID_MEM_OBJECT;
  std::shared_ptr<Context> context;
  std::shared_ptr<Storage> storage;
  size_t bytes = 0;  // of a buffer
  int references = 1;
  uint8_t* data() const { return storage->bytes.get(); }
  bool image = false;
  cl_image_format format{};
  size_t size[3] = {0, 0, 0};  // of an image, in pixels
  size_t pixel = 0, row = 0, slice = 0;  // bytes
};

struct Program : Object {
  static constexpr const char* kKind = "program";
  static constexpr cl_int kInvalid = CL_INVALID_PROGRAM;
  std::shared_ptr<Context> context;
  std::string source, options, log;
  bool from_binary = false, built = false;
};

enum class Role { kBuffer, kImage, kLocal, kScalar };

struct Parameter {
  Role role;
  size_t size;  // bytes of the argument
  std::string name;
};

struct Argument {
  bool set = false;
  std::vector<uint8_t> value;  // a scalar or a handle
};

struct Kernel : Object {
  static constexpr const char* kKind = "kernel";
  static constexpr cl_int kInvalid = CL_INVALID_KERNEL;
  std::shared_ptr<Program> program;
  std::string name;
  std::vector<Parameter> parameters;
  std::vector<Argument> arguments;
  std::thread::id setter;  // who set arguments since the last launch; nobody at first
};

// Why a call is refused: the code for the caller, the reason for the report.
struct Refusal {
  cl_int code;
  std::string why;
};

inline void Require(bool holds, cl_int code, const std::string& why) {
  if (!holds) throw Refusal{code, why};
}

struct World {
  World();
  std::recursive_mutex lock;
  std::map<uintptr_t, std::shared_ptr<Object>> objects;
  std::map<std::string, int64_t> live, calls;
  std::vector<std::string> refusals;
  std::vector<cl_platform_id> platforms;
  std::vector<std::shared_ptr<Device>> devices;
  int builds = 0, most_builds = 0, kernel_races = 0;
  uintptr_t next_handle = 0x1000;

  void Record(const char* call, cl_int code, const std::string& why);
};

World& TheWorld();

template <typename T>
const char* KindOf(const T& object) {
  if constexpr (std::is_same_v<T, Memory>) return object.image ? "image" : "buffer";
  return T::kKind;
}

template <typename Handle, typename T>
Handle Add(std::shared_ptr<T> object) {
  World& world = TheWorld();
  world.next_handle += 16;
  ++world.live[KindOf(*object)];
  world.objects[world.next_handle] = std::move(object);
  return reinterpret_cast<Handle>(world.next_handle);
}

template <typename T, typename Handle>
std::shared_ptr<T> Find(Handle handle) {
  auto& objects = TheWorld().objects;
  auto found = objects.find(reinterpret_cast<uintptr_t>(handle));
  auto object = found == objects.end() ? nullptr : std::dynamic_pointer_cast<T>(found->second);
  Require(object != nullptr, T::kInvalid, std::string("no such ") + T::kKind + " (released?)");
  return object;
}

template <typename T, typename Handle>
void Release(Handle handle) {
  auto object = Find<T>(handle);
  --TheWorld().live[KindOf(*object)];
  TheWorld().objects.erase(reinterpret_cast<uintptr_t>(handle));
}

// Runs the body of one OpenCL function; one call at a time.
template <typename Body>
cl_int Call(const char* name, Body body) {
  std::lock_guard guard(TheWorld().lock);
  Refusal outcome{CL_SUCCESS, ""};
  try {
    body();
  } catch (const Refusal& refusal) {
    outcome = refusal;
  }
  TheWorld().Record(name, outcome.code, outcome.why);
  return outcome.code;
}

template <typename Body>
auto Create(const char* name, cl_int* error, Body body) -> decltype(body()) {
  decltype(body()) handle = nullptr;
  cl_int code = Call(name, [&] { handle = body(); });
  if (error != nullptr) *error = code;
  return handle;
}

// Answers a clGet...Info query with `size` bytes.
void Answer(const void* value, size_t size, size_t room, void* out, size_t* needed);
void AnswerText(const std::string& value, size_t room, void* out, size_t* needed);
template <typename T>
void AnswerValue(T value, size_t room, void* out, size_t* needed) {
  Answer(&value, sizeof(T), room, out, needed);
}

// Queues a command and runs it now, unless commands are deferred and nobody waits for this one.
void Submit(cl_command_queue queue, bool blocking, cl_uint waits, const cl_event* wait_list,
            cl_event* event, uint64_t nanoseconds, std::function<void()> work);
std::shared_ptr<Memory> FindBuffer(cl_mem handle);
std::shared_ptr<Memory> FindImage(cl_mem handle);

}  // namespace fake
