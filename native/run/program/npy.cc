// SPDX-License-Identifier: Apache-2.0
#include "npy.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

#include "arguments.h"
#include "npy_header.h"

namespace smartmem::run {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text.empty() ? "scalar" : text;
}

std::vector<int64_t> ShapeOf(const smartmem_run_tensor& tensor) { return {tensor.shape, tensor.shape + tensor.rank}; }

// Returns numpy's code of a type: kind and bytes. Types that numpy lacks are raw bytes.
std::string CodeOf(const std::string& dtype) {
  static const auto* codes = new std::map<std::string, std::string>{
      {"bool", "b1"},   {"int8", "i1"},    {"int16", "i2"},   {"int32", "i4"},   {"int64", "i8"},   {"uint8", "u1"},
      {"uint16", "u2"}, {"uint32", "u4"},  {"uint64", "u8"},  {"float16", "f2"}, {"float32", "f4"}, {"float64", "f8"},
      {"bfloat16", "V2"},
  };
  const auto found = codes->find(dtype);
  return found == codes->end() ? "V1" : found->second;
}

// Returns whether a code fits a type. Types of fewer than eight bits may also be stored as bytes.
bool Fits(const std::string& code, const std::string& dtype) {
  const std::string kind = code.substr(1), wanted = CodeOf(dtype);
  if (wanted == "V1") return kind == "V1" || kind == (dtype.compare(0, 3, "int") == 0 ? "i1" : "u1");
  return kind == wanted;
}

File Open(const std::string& path, uint64_t* bytes) {
  File file(std::fopen(path.c_str(), "rb"), std::fclose);
  struct stat facts;
  if (file == nullptr || fstat(fileno(file.get()), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    const char* why = file == nullptr ? std::strerror(errno) : "it is no file";
    throw Mistake(path + " cannot be read (" + why + "): give a file of numbers.");
  }
  *bytes = static_cast<uint64_t>(facts.st_size);
  return file;
}

std::vector<char> ReadAll(FILE* file, uint64_t bytes, const std::string& path) {
  std::vector<char> data(bytes);
  const bool whole = std::fread(data.data(), 1, bytes, file) == bytes;
  if (!whole) throw Mistake(path + " cannot be read to its end: see whether the disk is well.");
  return data;
}

void SwapBytes(size_t width, std::vector<char>* data) {
  for (size_t at = 0; at + width <= data->size(); at += width) {
    std::reverse(data->begin() + static_cast<int64_t>(at), data->begin() + static_cast<int64_t>(at + width));
  }
}

void CheckHeader(const NpyHeader& header, const std::string& path, const smartmem_run_tensor& input) {
  const std::string where = path + " for input '" + input.name + "' has ";
  if (!Fits(header.code, input.dtype)) {
    throw Mistake(where + "numbers of type " + header.code + ", and it takes " + input.dtype +
                  ": convert it in numpy with .astype('" + input.dtype + "').");
  }
  if (header.shape != ShapeOf(input)) {
    throw Mistake(where + "shape " + ShapeText(header.shape) + ", and it takes " + ShapeText(ShapeOf(input)) +
                  ": give it in that shape.");
  }
  if (header.fortran && input.rank > 1) {
    throw Mistake(where + "the first dimension fastest: write it with numpy.ascontiguousarray.");
  }
}

std::vector<char> ReadNpy(const std::string& path, const smartmem_run_tensor& input) {
  uint64_t bytes = 0;
  const File file = Open(path, &bytes);
  std::vector<char> data = ReadAll(file.get(), std::min<uint64_t>(bytes, 12 + kMostHeader), path);
  const std::optional<NpyHeader> header = ParseHeader(data.data(), data.size());
  if (!header) throw Mistake(path + " is no .npy file of numbers: write it with numpy.save.");
  CheckHeader(*header, path, input);
  if (bytes - header->size != input.bytes) {
    throw Mistake(path + " has " + std::to_string(bytes - header->size) + " bytes of numbers, and its shape takes " +
                  std::to_string(input.bytes) + ": copy the file again.");
  }
  std::fseek(file.get(), static_cast<long>(header->size), SEEK_SET);
  data = ReadAll(file.get(), input.bytes, path);
  if (header->big_endian()) SwapBytes(static_cast<size_t>(header->code[2] - '0'), &data);
  return data;
}

std::vector<char> ReadRaw(const std::string& path, const smartmem_run_tensor& input) {
  uint64_t bytes = 0;
  const File file = Open(path, &bytes);
  if (bytes != input.bytes) {
    throw Mistake(path + " has " + std::to_string(bytes) + " bytes, and input '" + input.name + "' takes " +
                  std::to_string(input.bytes) + " (" + ShapeText(ShapeOf(input)) + " " + input.dtype +
                  "): give its numbers and nothing else.");
  }
  return ReadAll(file.get(), bytes, path);
}

bool IsNpy(const std::string& path) {
  return path.size() >= 4 && path.compare(path.size() - 4, 4, ".npy") == 0;
}

}  // namespace

std::vector<char> ReadArray(const std::string& path, const smartmem_run_tensor& input) {
  return IsNpy(path) ? ReadNpy(path, input) : ReadRaw(path, input);
}

std::optional<std::vector<int64_t>> ShapeInFile(const std::string& path) {
  if (!IsNpy(path)) return std::nullopt;
  uint64_t bytes = 0;
  const File file = Open(path, &bytes);
  const std::vector<char> data = ReadAll(file.get(), std::min<uint64_t>(bytes, 12 + kMostHeader), path);
  const std::optional<NpyHeader> header = ParseHeader(data.data(), data.size());
  if (!header) return std::nullopt;
  return header->shape;
}

void WriteArray(const std::string& path, const smartmem_run_tensor& output, const std::vector<char>& data) {
  const std::string code = CodeOf(output.dtype), order = code[1] == '1' && code[0] != 'V' ? "|" : "<";
  const std::string head = MakeHeader(order + code, ShapeOf(output));
  const std::string unfinished = path + "." + std::to_string(getpid()) + ".tmp";
  File file(std::fopen(unfinished.c_str(), "wb"), std::fclose);
  bool written = file != nullptr && std::fwrite(head.data(), 1, head.size(), file.get()) == head.size() &&
                 std::fwrite(data.data(), 1, data.size(), file.get()) == data.size();
  if (file != nullptr && std::fclose(file.release()) != 0) written = false;
  if (written && std::rename(unfinished.c_str(), path.c_str()) == 0) return;
  const std::string why = std::strerror(errno);
  std::remove(unfinished.c_str());
  throw Mistake(path + " cannot be written (" + why + "): give a folder that can.");
}

}  // namespace smartmem::run
