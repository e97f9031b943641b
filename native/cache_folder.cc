// SPDX-License-Identifier: Apache-2.0
#include "cache_folder.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <vector>

#include "environment.h"

namespace smartmem::opencl {
namespace {

namespace fs = std::filesystem;

constexpr char kTemporary[] = "/unfinished-";
constexpr int64_t kDefaultMegabytes = 1024;

struct File {
  fs::path path;
  fs::file_time_type used;
  int64_t bytes;
};

// Whether a file is a temporary one whose process ended before it renamed it (an hour old).
bool Abandoned(const File& file) {
  const bool temporary = file.path.filename().string().rfind(kTemporary + 1, 0) == 0;
  return temporary && file.used < fs::file_time_type::clock::now() - std::chrono::hours(1);
}

// Returns the entries of the folder, which another process may change at the same time.
std::vector<File> Entries(const std::string& folder) {
  std::vector<File> files;
  std::error_code gone;
  for (fs::directory_iterator it(folder, gone), end; !gone && it != end; it.increment(gone)) {
    std::error_code unreadable;
    const File file = {it->path(), it->last_write_time(unreadable), static_cast<int64_t>(it->file_size(unreadable))};
    if (unreadable) continue;
    if (Abandoned(file)) fs::remove(file.path, unreadable);
    if (file.path.extension() == kEntrySuffix) files.push_back(file);
  }
  return files;
}

// If the entries exceed the limit, deletes the least recently used ones until three quarters of the
// limit are left. Returns the bytes that may be added before the next call is due.
int64_t MakeRoom(const std::string& folder, int64_t limit) {
  std::vector<File> files = Entries(folder);
  int64_t bytes = 0;
  for (const File& file : files) bytes += file.bytes;
  if (bytes <= limit) return limit - bytes;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (bytes <= limit / 4 * 3) break;
    std::error_code gone;
    fs::remove(file.path, gone);
    bytes -= file.bytes;
  }
  return limit - bytes;
}

// Reads the folder at this process's first entry, and again only when this process has written as
// many bytes as there was room for.
void KeepUnderLimit(const std::string& folder, int64_t written) {
  static std::mutex mutex;
  static std::string looked_at;
  static int64_t room = 0;
  std::lock_guard<std::mutex> lock(mutex);
  room -= written;
  if (folder == looked_at && room >= 0) return;
  looked_at = folder;
  room = MakeRoom(folder, CacheMegabytes() << 20);
}

void WarnOnce(const std::string& folder, int error) {
  static std::once_flag once;
  std::call_once(once, [&] {
    std::fprintf(stderr,
                 "smartmem_tvm: compiled OpenCL kernels are not kept: writing into %s failed (%s); set "
                 "SMARTMEM_OPENCL_CACHE to another folder, or to 0 for none.\n",
                 folder.c_str(), std::strerror(error));
  });
}

// Returns 0, or the errno of the failure.
int WriteAll(int file, const std::string& content) {
  for (size_t done = 0; done < content.size();) {
    const ssize_t wrote = write(file, content.data() + done, content.size() - done);
    if (wrote < 0 && errno != EINTR) return errno;
    done += wrote < 0 ? 0 : static_cast<size_t>(wrote);
  }
  return 0;
}

// Makes the folder and an empty file in it; returns 0 and sets the descriptor, or returns the errno.
int NewFile(const std::string& folder, std::string* path, int* file) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) return failure.value();
  *path = folder + kTemporary + "XXXXXX";
  *file = mkstemp(path->data());
  return *file < 0 ? errno : 0;
}

int WriteAndRename(const std::string& folder, const std::string& path, const std::string& content) {
  std::string temporary;
  int file = -1;
  int error = NewFile(folder, &temporary, &file);
  if (error != 0) return error;
  error = WriteAll(file, content);
  if (close(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) unlink(temporary.c_str());
  return error;
}

}  // namespace

int64_t CacheMegabytes() { return WholeNumber("SMARTMEM_OPENCL_CACHE_MB", kDefaultMegabytes); }

bool CanWrite(const std::string& folder) {
  std::string path;
  int file = -1;
  const int error = NewFile(folder, &path, &file);
  if (error != 0) {
    WarnOnce(folder, error);
    return false;
  }
  close(file);
  unlink(path.c_str());
  return true;
}

void WriteEntry(const std::string& folder, const std::string& path, const std::string& content) {
  const int error = WriteAndRename(folder, path, content);
  if (error != 0) {
    WarnOnce(folder, error);
  } else {
    KeepUnderLimit(folder, static_cast<int64_t>(content.size()));
  }
}

}  // namespace smartmem::opencl
