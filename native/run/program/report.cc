// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <array>
#include <cstdio>
#include <utility>

namespace smartmem::run {
namespace {

std::array<std::pair<const char*, double>, 6> Figures(const Latency& latency) {
  return {{{"min", latency.min},
           {"p50", latency.p50},
           {"p90", latency.p90},
           {"p99", latency.p99},
           {"max", latency.max},
           {"mean", latency.mean}}};
}

std::string Number(double value, const char* format) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char each : text) {
    char escape[8];
    if (static_cast<unsigned char>(each) < 0x20) {
      std::snprintf(escape, sizeof escape, "\\u%04x", each);
      quoted += escape;
    } else {
      if (each == '"' || each == '\\') quoted += '\\';
      quoted += each;
    }
  }
  return quoted + "\"";
}

std::string Sizes(const std::vector<int64_t>& shape, const char* between) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : between) + std::to_string(size);
  return text;
}

std::string OutputJson(const OutputReport& output) {
  return "{\"name\": " + Quoted(output.name) + ", \"shape\": [" + Sizes(output.shape, ", ") +
         "], \"dtype\": " + Quoted(output.dtype) +
         ", \"file\": " + (output.file.empty() ? "null" : Quoted(output.file)) + "}";
}

}  // namespace

std::string AsText(const Report& report) {
  const std::string threads = std::to_string(report.threads) + (report.threads == 1 ? " thread" : " threads");
  std::string text = report.folder + " on " + report.device + (report.device == "cpu" ? ", " + threads : "") + ": " +
                     std::to_string(report.repeat) + " runs after " + std::to_string(report.warmup) + " to warm up.\n" +
                     "Loaded in " + Number(report.load_ms, "%.1f") + " ms, first run " +
                     Number(report.first_ms, "%.2f") + " ms, peak memory " + Number(report.peak_mb, "%.0f") +
                     " MB.\nLatency in ms:";
  for (const auto& [name, value] : Figures(report.latency_ms)) text += std::string(" ") + name + Number(value, " %.3f");
  for (const OutputReport& each : report.outputs) {
    const std::string shape = each.shape.empty() ? "scalar" : Sizes(each.shape, "x");
    text += "\nOutput " + each.name + ": " + shape + " " + each.dtype + (each.file.empty() ? "" : ", in " + each.file);
  }
  return text + "\n";
}

std::string AsJson(const Report& report) {
  std::string latency, outputs;
  for (const auto& [name, value] : Figures(report.latency_ms)) {
    latency += (latency.empty() ? "" : ", ") + Quoted(name) + ": " + Number(value, "%.6g");
  }
  for (const OutputReport& each : report.outputs) outputs += (outputs.empty() ? "" : ", ") + OutputJson(each);
  return "{\"folder\": " + Quoted(report.folder) + ", \"device\": " + Quoted(report.device) +
         ", \"threads\": " + std::to_string(report.threads) + ", \"warmup\": " + std::to_string(report.warmup) +
         ", \"repeat\": " + std::to_string(report.repeat) + ", \"load_ms\": " + Number(report.load_ms, "%.6g") +
         ", \"first_ms\": " + Number(report.first_ms, "%.6g") + ", \"peak_mb\": " + Number(report.peak_mb, "%.6g") +
         ", \"latency_ms\": {" + latency + "}, \"outputs\": [" + outputs + "]}\n";
}

std::string AsText(const Written& written) {
  std::string text;
  size_t tokens = 0;
  for (const std::vector<int64_t>& each : written.ids) text += Sizes(each, ",") + "\n", tokens += each.size();
  return text + std::to_string(written.prompt) + " tokens of prompt and " + std::to_string(tokens) + " more in " +
         Number(written.total_ms, "%.2f") + " ms. Rows of the caches: " + std::to_string(written.capacity) +
         ", peak memory " + Number(written.peak_mb, "%.0f") + " MB.\n";
}

// As `smartmem generate --json`: a list of ids for one prompt, of lists for several.
std::string AsJson(const Written& written) {
  std::string ids;
  for (const std::vector<int64_t>& each : written.ids) {
    ids += (ids.empty() ? "[" : ", [") + Sizes(each, ", ") + "]";
  }
  return "{\"folder\": " + Quoted(written.folder) + ", \"device\": " + Quoted(written.device) +
         ", \"threads\": " + std::to_string(written.threads) + ", \"capacity\": " + std::to_string(written.capacity) +
         ", \"load_ms\": " + Number(written.load_ms, "%.6g") + ", \"total_ms\": " +
         Number(written.total_ms, "%.6g") + ", \"peak_mb\": " + Number(written.peak_mb, "%.6g") + ", \"ids\": " +
         (written.ids.size() == 1 ? ids : "[" + ids + "]") + "}\n";
}

}  // namespace smartmem::run
