// SPDX-License-Identifier: Apache-2.0
// Driver objects with one owner, and counts of the live ones of each kind.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "library.h"

namespace smartmem::opencl {

enum class Kind { kContext, kQueue, kBuffer, kImage, kProgram, kKernel, kEvent };
inline constexpr std::array<const char*, 7> kKindNames = {"context", "queue",  "buffer", "image",
                                                          "program", "kernel", "event"};
inline std::array<std::atomic<int64_t>, kKindNames.size()> live_objects{};

// Whether this process was forked after the first use of a device. Drivers have threads, which a
// child process does not inherit: it would wait for them for ever.
inline std::atomic<bool> forked = false;

// Errors of a release are ignored: a destructor cannot report them, and a lost device refuses to release.
inline void Release(cl_context handle) { Cl().clReleaseContext(handle); }
inline void Release(cl_command_queue handle) { Cl().clReleaseCommandQueue(handle); }
inline void Release(cl_mem handle) { Cl().clReleaseMemObject(handle); }
inline void Release(cl_program handle) { Cl().clReleaseProgram(handle); }
inline void Release(cl_kernel handle) { Cl().clReleaseKernel(handle); }
inline void Release(cl_event handle) { Cl().clReleaseEvent(handle); }

// A driver object, released with its owner; null or one reference.
template <typename T, Kind kind>
class Owned {
 public:
  Owned() = default;
  explicit Owned(T handle) : handle_(handle) { Count(handle_ != nullptr); }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ == nullptr || forked) return;
    Release(handle_);
    Count(-1);
  }
  T get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  static void Count(int64_t change) { live_objects[static_cast<size_t>(kind)] += change; }
  T handle_ = nullptr;
};

using Context = Owned<cl_context, Kind::kContext>;
using Queue = Owned<cl_command_queue, Kind::kQueue>;
using BufferObject = Owned<cl_mem, Kind::kBuffer>;
using ImageObject = Owned<cl_mem, Kind::kImage>;
using Program = Owned<cl_program, Kind::kProgram>;
using Kernel = Owned<cl_kernel, Kind::kKernel>;
using Event = Owned<cl_event, Kind::kEvent>;

}  // namespace smartmem::opencl
