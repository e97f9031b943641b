// SPDX-License-Identifier: Apache-2.0
// The folder of the program cache: files are written atomically, and its size is limited.
#pragma once

#include <cstdint>
#include <string>

namespace smartmem::opencl {

// The suffix of cache entries; files of other names are never touched.
inline constexpr char kEntrySuffix[] = ".clprogram";

// Writes the file under a temporary name and renames it, so that readers and other writers see
// all of it or nothing. Then deletes the least recently used entries if the folder exceeds
// SMARTMEM_OPENCL_CACHE_MB. A failure is reported on stderr, once in a process.
void WriteEntry(const std::string& folder, const std::string& path, const std::string& content);

// Whether a file can be made in the folder, which is made if it does not exist; reports a failure
// like WriteEntry.
bool CanWrite(const std::string& folder);

// The limit of the folder in megabytes; throws if SMARTMEM_OPENCL_CACHE_MB is no whole number.
int64_t CacheMegabytes();

}  // namespace smartmem::opencl
