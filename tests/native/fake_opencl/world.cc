// SPDX-License-Identifier: Apache-2.0
// The book of calls, and the functions with which a test reads it (through ctypes, or at exit).
#include "world.h"

#include <cstdio>
#include <cstring>
#include <fstream>

namespace fake {
namespace {

const char* CodeName(cl_int code) {
  switch (code) {
#define FAKE_CASE(name, value) \
  case value:                  \
    return #name;
    SMARTMEM_CL_ERRORS(FAKE_CASE)
#undef FAKE_CASE
  }
  return "unknown";
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < ' ' ? ' ' : c;
  }
  return out + '"';
}

std::string Json(const std::map<std::string, int64_t>& counts) {
  std::string out = "{";
  for (const auto& [name, count] : counts) {
    out += (out.size() > 1 ? ", " : "") + Quoted(name) + ": " + std::to_string(count);
  }
  return out + "}";
}

std::string Report() {
  World& world = TheWorld();
  std::string refusals;
  for (const auto& text : world.refusals) refusals += (refusals.empty() ? "" : ", ") + Quoted(text);
  std::string used;
  for (const auto& device : world.devices) {
    used += (used.empty() ? "" : ", ") + std::to_string(device->used);
  }
  return "{\"live\": " + Json(world.live) + ", \"calls\": " + Json(world.calls) +
         ", \"refusals\": [" + refusals + "], \"used_bytes\": [" + used +
         "], \"max_parallel_builds\": " + std::to_string(world.most_builds) +
         ", \"kernel_races\": " + std::to_string(world.kernel_races) + "}";
}

struct AtExit {
  ~AtExit() {
    if (!Config().report.empty()) std::ofstream(Config().report) << Report() << '\n';
  }
} at_exit;

}  // namespace

// Never destroyed: what outlives the exit handlers may still release objects.
World& TheWorld() {
  static World* world = new World();
  return *world;
}

void World::Record(const char* call, cl_int code, const std::string& why) {
  ++calls[call];
  std::string text = call;
  if (code != CL_SUCCESS) {
    text += std::string(": ") + CodeName(code) + ": " + why;
    if (refusals.size() < 1000) refusals.push_back(text);
  }
  if (!Config().log.empty()) std::ofstream(Config().log, std::ios::app) << text << '\n';
}

void Answer(const void* value, size_t size, size_t room, void* out, size_t* needed) {
  if (needed != nullptr) *needed = size;
  if (out == nullptr) return;
  Require(room >= size, CL_INVALID_VALUE, "the answer does not fit");
  std::memcpy(out, value, size);
}

void AnswerText(const std::string& value, size_t room, void* out, size_t* needed) {
  Answer(value.c_str(), value.size() + 1, room, out, needed);
}

}  // namespace fake

using fake::TheWorld;

// Objects of a kind (context, queue, buffer, image, program, kernel, event) made and not released.
FAKE_EXPORT int64_t fake_live(const char* kind) {
  std::lock_guard guard(TheWorld().lock);
  return TheWorld().live[kind];
}

FAKE_EXPORT int64_t fake_calls(const char* function) {
  std::lock_guard guard(TheWorld().lock);
  return TheWorld().calls[function];
}

FAKE_EXPORT int fake_max_parallel_builds() {
  std::lock_guard guard(TheWorld().lock);
  return TheWorld().most_builds;
}

// Everything as JSON; valid until the next call.
FAKE_EXPORT const char* fake_report() {
  std::lock_guard guard(TheWorld().lock);
  static std::string* text = new std::string();
  *text = fake::Report();
  return text->c_str();
}

// Calls and refusals so far do not count.
FAKE_EXPORT void fake_forget() {
  std::lock_guard guard(TheWorld().lock);
  TheWorld().calls.clear();
  TheWorld().refusals.clear();
}

// The device with this index, counted over all platforms, takes `commands` more and is lost then.
FAKE_EXPORT void fake_lose(int device, int64_t commands) {
  std::lock_guard guard(TheWorld().lock);
  TheWorld().devices.at(device)->commands_left = commands;
  TheWorld().devices.at(device)->lost = commands <= 0;
}

// Reads one byte too many, to see whether a sanitizer watches.
FAKE_EXPORT int fake_overrun() {
  std::vector<char> bytes(TheWorld().platforms.size() + 7);
  const volatile char* data = bytes.data();
  return data[bytes.size()];
}
