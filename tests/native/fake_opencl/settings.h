// SPDX-License-Identifier: Apache-2.0
// What the fake driver pretends to be: read once from the variables FAKE_OPENCL_*.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace fake {

inline std::string Text(const char* name, const std::string& otherwise) {
  const char* value = std::getenv((std::string("FAKE_OPENCL_") + name).c_str());
  return value == nullptr ? otherwise : value;
}

inline uint64_t Number(const char* name, uint64_t otherwise) {
  std::string value = Text(name, "");
  return value.empty() ? otherwise : std::stoull(value);
}

inline std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

struct Settings {
  // "2,0": one platform with two devices, one with none.
  std::vector<std::string> devices = Split(Text("DEVICES", "1"), ',');
  std::vector<std::string> platform_names = Split(Text("PLATFORM_NAMES", ""), ';');
  std::vector<std::string> device_names = Split(Text("DEVICE_NAMES", ""), ';');
  std::string type = Text("TYPE", "gpu");  // gpu, cpu or accelerator
  std::string driver = Text("DRIVER", "1.0");

  bool images = Number("IMAGES", 1) != 0;
  bool image_from_buffer = Number("IMAGE_FROM_BUFFER", 0) != 0;
  bool half = Number("HALF", 0) != 0;
  uint64_t width = Number("WIDTH", 16384);
  uint64_t height = Number("HEIGHT", 16384);
  uint64_t depth = Number("DEPTH", 2048);
  uint64_t pitch = Number("PITCH", 64);  // of an image on a buffer, in pixels

  uint64_t memory = Number("MEMORY", uint64_t{4} << 30);  // of one device
  uint64_t max_alloc = Number("MAX_ALLOC", memory);
  uint64_t work_group = Number("WORK_GROUP", 256);

  // "1:5": device 1 takes five commands, then it is lost.
  std::vector<std::string> lose = Split(Text("LOSE", ""), ':');

  std::string build_fails = Text("BUILD_FAILS", "FAKE_BUILD_FAILS");  // in the source
  uint64_t build_ms = Number("BUILD_MS", 0);
  bool binaries = Number("BINARIES", 1) != 0;

  // Commands wait until something must wait for them, as on a device that is far behind.
  bool defer = Number("DEFER", 0) != 0;
  uint64_t kernel_ns = Number("KERNEL_NS", 1000);

  std::string log = Text("LOG", "");        // every call, as it is made
  std::string report = Text("REPORT", "");  // live objects, calls and refusals, at exit
};

inline const Settings& Config() {
  static const Settings* settings = new Settings();
  return *settings;
}

}  // namespace fake
