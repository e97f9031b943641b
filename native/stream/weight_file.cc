// SPDX-License-Identifier: Apache-2.0
#include "weight_file.h"

#include <fcntl.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace smartmem::stream {
namespace {

static_assert(sizeof(off_t) == 8, "weights of more than 2 GiB need offsets of 64 bits: add -D_FILE_OFFSET_BITS=64");

std::string Reason(int error) { return std::generic_category().message(error); }

std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

bool SameTime(const struct stat& one, const struct stat& other) {
#ifdef __APPLE__
  const timespec &first = one.st_mtimespec, &second = other.st_mtimespec;
#else
  const timespec &first = one.st_mtim, &second = other.st_mtim;
#endif
  return first.tv_sec == second.tv_sec && first.tv_nsec == second.tv_nsec;
}

bool SameFile(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Returns why an opened file cannot hold the weights; empty if it can.
std::string Unfit(int descriptor, int64_t bytes, struct stat* found) {
  if (fstat(descriptor, found) != 0) return Reason(errno);
  if (!S_ISREG(found->st_mode)) return "it is no regular file";
  if (found->st_size == bytes) return "";
  return "it has " + std::to_string(found->st_size) + " bytes in place of " + std::to_string(bytes);
}

}  // namespace

WeightFile::WeightFile(const std::string& path, int64_t bytes) : path_(Absolute(path)) {
  // O_NONBLOCK: does not wait for a writer if the path is a pipe.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    TVM_FFI_THROW(RuntimeError) << "the weights " << path_ << " cannot be opened (" << Reason(errno)
                                << "): pass the file that was written with the model.";
  }
  if (const std::string unfit = Unfit(descriptor_, bytes, &opened_); !unfit.empty()) {
    close(descriptor_);
    TVM_FFI_THROW(RuntimeError) << "the weights " << path_ << " are not those of the model (" << unfit
                                << "): pass the file that was written with the model, or write both anew.";
  }
}

WeightFile::~WeightFile() { close(descriptor_); }

std::string WeightFile::Change() const {
  const std::string file = "the weights " + path_;
  const std::string remedy = ": put the file back as it was, or open it anew.";
  struct stat now;
  if (fstat(descriptor_, &now) != 0) return file + " cannot be looked at (" + Reason(errno) + ")" + remedy;
  if (now.st_size < opened_.st_size) {
    return file + " were truncated from " + std::to_string(opened_.st_size) + " to " + std::to_string(now.st_size) +
           " bytes while they were open" + remedy;
  }
  const std::string changed = file + " were changed while they were open";
  if (now.st_size != opened_.st_size || !SameTime(now, opened_)) return changed + remedy;
  // An open file stays readable after its name is deleted, but other processes would not find the weights.
  if (stat(path_.c_str(), &now) != 0) {
    const int error = errno;
    if (error != ENOENT && error != ENOTDIR) return file + " cannot be found (" + Reason(error) + ")" + remedy;
    return file + " were deleted while they were open" + remedy;
  }
  return SameFile(now, opened_) ? "" : changed + " (another file has taken their place)" + remedy;
}

ssize_t WeightFile::Read(char* to, int64_t bytes, int64_t offset) const {
  ssize_t got = 0;
  do {
    got = pread(descriptor_, to, static_cast<size_t>(bytes), offset);
  } while (got < 0 && errno == EINTR);
  return got;
}

int64_t WeightFile::ReadAll(char* to, int64_t bytes, int64_t offset) const {
  int64_t have = 0;
  while (have < bytes) {
    const ssize_t got = Read(to + have, bytes - have, offset + have);
    if (got <= 0) break;
    have += got;
  }
  return have;
}

}  // namespace smartmem::stream
