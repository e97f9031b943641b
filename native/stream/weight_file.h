// SPDX-License-Identifier: Apache-2.0
// The file of a model's weights: opened once, read in pieces, and checked for changes since it was opened.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace smartmem::stream {

class WeightFile {
 public:
  // Throws if the path has no readable file of this size.
  WeightFile(const std::string& path, int64_t bytes);
  ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  const std::string& path() const { return path_; }

  // Returns a sentence on how the file has changed since it was opened, with a remedy; empty if it has not.
  std::string Change() const;

  // Like pread, but repeated after a signal: returns the bytes read, 0 at the end of the file, negative for an error.
  ssize_t Read(char* to, int64_t bytes, int64_t offset) const;

  // Reads until all bytes are there; returns fewer if the file ends or fails.
  int64_t ReadAll(char* to, int64_t bytes, int64_t offset) const;

 private:
  std::string path_;  // absolute: the working directory may change
  int descriptor_;
  struct stat opened_;
};

}  // namespace smartmem::stream
