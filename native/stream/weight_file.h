// SPDX-License-Identifier: Apache-2.0
// The file of a model's weights: opened once, read piece by piece, and asked whether it is still what was opened.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace smartmem::stream {

class WeightFile {
 public:
  // Throws if there is no readable file of this size.
  WeightFile(const std::string& path, int64_t bytes);
  ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  const std::string& path() const { return path_; }

  // What has happened to the file since it was opened and what to do, in one sentence; empty if nothing has.
  std::string Change() const;

  // As pread, but begun anew after a signal: how many bytes it got, 0 at the end of the file, negative for an error.
  ssize_t Read(char* to, int64_t bytes, int64_t offset) const;

  // Reads until it has them all; fewer if the file ends or fails there.
  int64_t ReadAll(char* to, int64_t bytes, int64_t offset) const;

 private:
  std::string path_;  // absolute: the folder that the process is in may change
  int descriptor_;
  struct stat opened_;
};

}  // namespace smartmem::stream
