// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace smartmem::run {

// Bad usage or bad input, in one sentence.
class Mistake : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Arguments {
  std::string folder;
  std::map<std::string, std::string> inputs;  // name -> file
  std::map<std::string, std::vector<int64_t>> shapes;  // name -> shape
  std::string output;                         // folder, empty for none
  std::string device;                         // "cpu", "opencl" or empty
  int32_t device_index = 0;
  int32_t threads = 0;  // 0: as TVM_NUM_THREADS says, or one per core
  int64_t repeat = 10, warmup = 2;
  std::vector<std::vector<int64_t>> prompts;  // ids of tokens; empty unless tokens are to be written
  int32_t tokens = 0;
  uint64_t seed = 0;
  bool zeros = false, json = false, unchecked = false, help = false;
};

extern const char* const kUsage;

Arguments Parse(int count, char** texts);

}  // namespace smartmem::run
