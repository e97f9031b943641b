// SPDX-License-Identifier: Apache-2.0
// Prints the program's report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "latency.h"

namespace smartmem::run {

struct OutputReport {
  std::string name, dtype, file;  // empty file if no output folder was given
  std::vector<int64_t> shape;
};

struct Report {
  std::string folder, device;
  int32_t threads;
  int64_t warmup, repeat;
  double load_ms, first_ms, peak_mb;
  Latency latency_ms;
  std::vector<OutputReport> outputs;
};

// What a model that keeps caches has written.
struct Written {
  std::string folder, device;
  int32_t threads;
  int64_t prompt, capacity;
  double load_ms, total_ms, peak_mb;
  std::vector<std::vector<int64_t>> ids;  // of each sequence
};

std::string AsText(const Report& report);
std::string AsJson(const Report& report);
std::string AsText(const Written& written);
std::string AsJson(const Written& written);

}  // namespace smartmem::run
