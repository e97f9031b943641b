// SPDX-License-Identifier: Apache-2.0
#include "program_cache.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "cache_folder.h"
#include "environment.h"
#include "register.h"

namespace smartmem::opencl {
namespace {

// The number must change with the layout of the file and with the meaning of the key.
constexpr char kFormat[] = "smartmem OpenCL program 1\n";

__extension__ typedef unsigned __int128 Hash;

// FNV-1a: it names files and detects damage, but does not protect against forged files.
Hash HashOf(const std::string& bytes) {
  constexpr Hash prime = (static_cast<Hash>(1) << 88) + 0x13b;
  Hash hash = (static_cast<Hash>(0x6c62272e07bb0142) << 64) + 0x62b821756295c58d;
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * prime;
  return hash;
}

std::string Hex(Hash hash) {
  std::string text(32, '0');
  for (int i = 31; i >= 0; --i, hash >>= 4) text[i] = "0123456789abcdef"[static_cast<int>(hash & 15)];
  return text;
}

// The header of a file, before the key and the binary.
struct Header {
  char format[sizeof(kFormat)];
  char sum[32];  // hash of the binary
  uint64_t key_bytes;
  uint64_t binary_bytes;
};

Header HeaderOf(const std::string& key, const std::string& binary) {
  Header header;
  std::memset(&header, 0, sizeof(header));  // the padding is written too
  std::memcpy(header.format, kFormat, sizeof(kFormat));
  std::memcpy(header.sum, Hex(HashOf(binary)).data(), sizeof(header.sum));
  header.key_bytes = key.size();
  header.binary_bytes = binary.size();
  return header;
}

// Returns the binary in a file; empty unless the file is complete and has this key.
std::string ReadEntry(const std::string& path, const std::string& key) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const auto bytes = static_cast<uint64_t>(file.tellg());
  Header header;
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header))) return "";
  if (header.key_bytes != key.size() || header.binary_bytes > bytes ||
      sizeof(header) + header.key_bytes + header.binary_bytes != bytes) {
    return "";
  }
  std::string stored_key(header.key_bytes, '\0');
  std::string binary(header.binary_bytes, '\0');
  file.read(stored_key.data(), static_cast<std::streamsize>(stored_key.size()));
  file.read(binary.data(), static_cast<std::streamsize>(binary.size()));
  const Header expected = HeaderOf(key, binary);
  const bool whole = file && stored_key == key && std::memcmp(&header, &expected, sizeof(header)) == 0;
  return whole ? binary : "";
}

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef().def("smartmem.opencl.cache_folder",
                                        [] { return tvm::ffi::String(CacheFolder()); });
}

}  // namespace

std::string CacheFolder() {
  const std::string chosen = Environment("SMARTMEM_OPENCL_CACHE");
  if (chosen == "0") return "";
  std::error_code ignored;
  if (!chosen.empty()) return std::filesystem::absolute(chosen, ignored).string();
  std::string base = Environment("XDG_CACHE_HOME");
  if (base.empty() && !Environment("HOME").empty()) base = Environment("HOME") + "/.cache";
  return base.empty() ? "" : base + "/smartmem_tvm/opencl";
}

std::string Fingerprint(const Device& device) {
  return device.platform_name + "\n" + device.platform_version + "\n" + device.vendor + "\n" + device.name + "\n" +
         device.version + "\n" + device.driver + "\n";
}

ProgramCache::ProgramCache(const Device& device, const std::string& options)
    : folder_(CacheFolder()), about_(Fingerprint(device) + options + "\n") {
  if (enabled()) CacheMegabytes();  // throws for a wrong number here: a worker could not report it
}

std::string ProgramCache::FileOf(const std::string& key) const {
  return folder_ + "/" + Hex(HashOf(key)) + kEntrySuffix;
}

std::string ProgramCache::Load(const std::string& code) const {
  if (!enabled()) return "";
  const std::string key = Key(code);
  const std::string path = FileOf(key);
  std::error_code missing;
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(path, now, missing);  // the least recently used are deleted first
  std::string binary = ReadEntry(path, key);
  if (binary.empty()) std::filesystem::remove(path, missing);
  return binary;
}

void ProgramCache::Store(const std::string& code, const std::string& binary) const {
  if (!enabled() || binary.empty()) return;
  const std::string key = Key(code);
  const Header header = HeaderOf(key, binary);
  WriteEntry(folder_, FileOf(key), std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + key + binary);
}

void ProgramCache::Forget(const std::string& code) const {
  std::error_code ignored;
  if (enabled()) std::filesystem::remove(FileOf(Key(code)), ignored);
}

}  // namespace smartmem::opencl
