// SPDX-License-Identifier: Apache-2.0
// Compiled programs on disk, so that no process compiles a program that another has compiled.
//
// There is one file per program and device. A failure of the cache is a miss, with at most one warning
// per process, and never an error.
#pragma once

#include <string>

#include "device.h"

namespace smartmem::opencl {

// The folder of SMARTMEM_OPENCL_CACHE, else the user's cache folder; empty if the cache is off.
std::string CacheFolder();

// A text that is equal for devices that run the same binaries.
std::string Fingerprint(const Device& device);

class ProgramCache {
 public:
  ProgramCache(const Device& device, const std::string& options);

  bool enabled() const { return !folder_.empty(); }
  const std::string& folder() const { return folder_; }

  // Returns the binary that was stored for this source, or an empty string.
  std::string Load(const std::string& code) const;
  void Store(const std::string& code, const std::string& binary) const;
  // Deletes the entry of a binary that the driver refused.
  void Forget(const std::string& code) const;

 private:
  std::string Key(const std::string& code) const { return about_ + code; }
  std::string FileOf(const std::string& key) const;

  std::string folder_;
  std::string about_;  // the part of the key before the source: device and options
};

}  // namespace smartmem::opencl
