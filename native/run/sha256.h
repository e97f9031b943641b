// SPDX-License-Identifier: Apache-2.0
// SHA-256 checksums of files (FIPS 180-4).
#pragma once

#include <string>

namespace smartmem::run {

// In hexadecimal; empty if the file cannot be read.
std::string Sha256OfFile(const std::string& path);

}  // namespace smartmem::run
