// SPDX-License-Identifier: Apache-2.0
// The folder of the program cache: files appear whole, and it does not grow for ever.
#pragma once

#include <cstdint>
#include <string>

namespace smartmem::opencl {

// How our files end; files of other names are never touched.
inline constexpr char kEntrySuffix[] = ".clprogram";

// Writes the file under a temporary name and renames it, so that readers and other writers see
// all of it or nothing. Then, above SMARTMEM_OPENCL_CACHE_MB, deletes the least recently used.
// Where that cannot be done, the first time in a process says why on stderr.
void WriteEntry(const std::string& folder, const std::string& path, const std::string& content);

// Whether a file can be made in the folder, which is made if there is none; where not, says why
// like WriteEntry.
bool CanWrite(const std::string& folder);

// How many megabytes the folder may hold; throws if SMARTMEM_OPENCL_CACHE_MB is no such number.
int64_t CacheMegabytes();

}  // namespace smartmem::opencl
