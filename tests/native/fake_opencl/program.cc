// SPDX-License-Identifier: Apache-2.0
// Programs of the fake driver: "compiling" reads nothing but a marker and may take its time.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "world.h"

namespace fake {
namespace {

const std::string& BinaryHead() {
  static const std::string* head = new std::string("FAKE BINARY " + Config().driver + "\n");
  return *head;
}

std::string Binary(const Program& program) {
  bool have = program.built && Config().binaries;
  return have ? BinaryHead() + program.options + "\n" + program.source : "";
}

// The log names the line of the marker, as a compiler does.
void Compile(Program& program) {
  size_t at = program.source.find(Config().build_fails);
  if (at != std::string::npos) {
    auto line = 1 + std::count(program.source.begin(), program.source.begin() + at, '\n');
    program.log = "kernel.cl:" + std::to_string(line) + ":1: error: the marker is here";
    throw Refusal{CL_BUILD_PROGRAM_FAILURE, program.log};
  }
  program.log.clear();
  program.built = true;
}

// Builds of several threads overlap: the one lock of the driver is given up meanwhile.
void TakeTime() {
  World& world = TheWorld();
  world.most_builds = std::max(world.most_builds, ++world.builds);
  if (Config().build_ms > 0) {
    world.lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(Config().build_ms));
    world.lock.lock();
  }
  --world.builds;
}

}  // namespace
}  // namespace fake

using namespace fake;

FAKE_EXPORT cl_program clCreateProgramWithSource(cl_context context, cl_uint count,
                                                 const char** texts, const size_t* lengths,
                                                 cl_int* error) {
  return Create(__func__, error, [&] {
    auto program = std::make_shared<Program>();
    program->context = Find<Context>(context);
    Require(count > 0 && texts != nullptr, CL_INVALID_VALUE, "no source");
    for (cl_uint i = 0; i < count; ++i) {
      Require(texts[i] != nullptr, CL_INVALID_VALUE, "no source");
      bool measured = lengths != nullptr && lengths[i] != 0;
      program->source.append(texts[i], measured ? lengths[i] : std::strlen(texts[i]));
    }
    return Add<cl_program>(program);
  });
}

FAKE_EXPORT cl_program clCreateProgramWithBinary(cl_context context, cl_uint count,
                                                 const cl_device_id* devices,
                                                 const size_t* lengths,
                                                 const unsigned char** binaries, cl_int* status,
                                                 cl_int* error) {
  return Create(__func__, error, [&] {
    auto program = std::make_shared<Program>();
    program->context = Find<Context>(context);
    bool given = count == 1 && devices != nullptr && lengths != nullptr && binaries != nullptr &&
                 lengths[0] > 0 && binaries[0] != nullptr;
    Require(given, CL_INVALID_VALUE, "one device and one binary are expected");
    bool own = Find<Device>(devices[0]) == program->context->device;
    Require(own, CL_INVALID_DEVICE, "the device is not of this context");
    std::string text(reinterpret_cast<const char*>(binaries[0]), lengths[0]);
    bool mine = text.starts_with(BinaryHead());
    if (status != nullptr) *status = mine ? CL_SUCCESS : CL_INVALID_BINARY;
    Require(mine, CL_INVALID_BINARY, "not a binary of this driver");
    size_t options_end = text.find('\n', BinaryHead().size());
    program->source = text.substr(options_end + 1);
    program->from_binary = true;
    return Add<cl_program>(program);
  });
}

FAKE_EXPORT cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id* devices,
                                  const char* options, void (*done)(cl_program, void*), void*) {
  return Call(__func__, [&] {
    auto found = Find<Program>(program);
    Require((count == 0) == (devices == nullptr), CL_INVALID_VALUE, "count without devices");
    for (cl_uint i = 0; i < count; ++i) {
      bool own = Find<Device>(devices[i]) == found->context->device;
      Require(own, CL_INVALID_DEVICE, "the device is not of this context");
    }
    Require(done == nullptr, CL_INVALID_OPERATION, "builds run in the caller's thread");
    Require(!found->context->device->lost, CL_DEVICE_NOT_AVAILABLE, "the device is lost");
    found->options = options == nullptr ? "" : options;
    ++TheWorld().calls[found->from_binary ? "build from binary" : "build from source"];
    if (!found->from_binary) TakeTime();
    Compile(*found);
  });
}

FAKE_EXPORT cl_int clGetProgramInfo(cl_program program, cl_uint what, size_t room, void* out,
                                    size_t* needed) {
  return Call(__func__, [&] {
    std::string binary = Binary(*Find<Program>(program));
    if (what == CL_PROGRAM_BINARY_SIZES) return AnswerValue(binary.size(), room, out, needed);
    Require(what == CL_PROGRAM_BINARIES, CL_INVALID_VALUE, "unknown question");
    if (needed != nullptr) *needed = sizeof(void*);
    if (out == nullptr) return;
    Require(room >= sizeof(void*), CL_INVALID_VALUE, "the answer does not fit");
    void* place = *static_cast<void**>(out);
    if (place != nullptr) std::memcpy(place, binary.data(), binary.size());
  });
}

FAKE_EXPORT cl_int clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_uint what,
                                         size_t room, void* out, size_t* needed) {
  return Call(__func__, [&] {
    auto found = Find<Program>(program);
    bool own = Find<Device>(device) == found->context->device;
    Require(own, CL_INVALID_DEVICE, "the device is not of this context");
    Require(what == CL_PROGRAM_BUILD_LOG, CL_INVALID_VALUE, "unknown question");
    AnswerText(found->log, room, out, needed);
  });
}

FAKE_EXPORT cl_int clReleaseProgram(cl_program program) {
  return Call(__func__, [&] { Release<Program>(program); });
}
