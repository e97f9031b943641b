// SPDX-License-Identifier: Apache-2.0
// Compiled programs on disk, so that no process compiles what another has compiled.
//
// One file per program and device. A cache is a convenience: whatever goes wrong with it is a
// miss, at most with one warning per process, and never an error.
#pragma once

#include <string>

#include "device.h"

namespace smartmem::opencl {

// SMARTMEM_OPENCL_CACHE, else the user's cache folder; empty if there is to be no cache.
std::string CacheFolder();

// All that tells whether two devices run the same binaries.
std::string Fingerprint(const Device& device);

class ProgramCache {
 public:
  ProgramCache(const Device& device, const std::string& options);

  bool enabled() const { return !folder_.empty(); }
  const std::string& folder() const { return folder_; }

  // The binary that was stored for this source, or an empty string.
  std::string Load(const std::string& code) const;
  void Store(const std::string& code, const std::string& binary) const;
  // Of a binary that the driver refused.
  void Forget(const std::string& code) const;

 private:
  std::string Key(const std::string& code) const { return about_ + code; }
  std::string FileOf(const std::string& key) const;

  std::string folder_;
  std::string about_;  // the key's part that is not the source
};

}  // namespace smartmem::opencl
