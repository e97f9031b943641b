// SPDX-License-Identifier: Apache-2.0
#include "build_log.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>
#include <vector>

namespace smartmem::opencl {
namespace {

constexpr size_t kMostLog = 4000;      // characters of the log that are shown
constexpr size_t kMostWidth = 600;     // characters of a source line: a kernel's first one is long
constexpr size_t kMostErrors = 4;      // errors whose source lines are shown

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// "<kernel>:12:5: error: ..." -> 12; 0 if there is no number. The name before it differs by driver.
size_t LineNumberIn(const std::string& message) {
  for (size_t colon = message.find(':'); colon != std::string::npos; colon = message.find(':', colon + 1)) {
    char* end = nullptr;
    const unsigned long number = std::strtoul(message.c_str() + colon + 1, &end, 10);
    if (number > 0 && (*end == ':' || *end == ')')) return number;
  }
  return 0;
}

std::string Numbered(const std::vector<std::string>& lines, size_t number, bool wrong) {
  std::string line = std::to_string(number);
  line = std::string(line.size() < 6 ? 6 - line.size() : 0, ' ') + line + " | " + lines[number - 1];
  if (line.size() > kMostWidth) line = line.substr(0, kMostWidth) + "...";
  return (wrong ? ">" : " ") + line + "\n";
}

}  // namespace

std::string BuildLog(const Device& device, cl_program program) {
  size_t bytes = 0;
  if (Cl().clGetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes) != CL_SUCCESS) return "";
  std::string log(bytes, '\0');
  Cl().clGetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr);
  log.erase(std::find(log.begin(), log.end(), '\0'), log.end());
  log.erase(log.find_last_not_of(" \n") + 1);
  return log.size() > kMostLog ? log.substr(0, kMostLog) + "..." : log;
}

std::string LinesNamed(const std::string& log, const std::string& code) {
  const std::vector<std::string> lines = Lines(code);
  std::set<size_t> wrong;
  for (const std::string& message : Lines(log)) {
    const size_t number = message.find("error") == std::string::npos ? 0 : LineNumberIn(message);
    if (number > 0 && number <= lines.size() && wrong.size() < kMostErrors) wrong.insert(number);
  }
  std::set<size_t> shown;
  for (const size_t number : wrong) {
    for (size_t near = std::max<size_t>(number, 2) - 1; near <= std::min(number + 1, lines.size()); ++near) {
      shown.insert(near);
    }
  }
  std::string text;
  for (const size_t number : shown) text += Numbered(lines, number, wrong.count(number) > 0);
  return text;
}

}  // namespace smartmem::opencl
