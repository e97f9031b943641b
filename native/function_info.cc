// SPDX-License-Identifier: Apache-2.0
// The byte format: numbers are little-endian; strings and lists begin with their length as uint64.
#include "function_info.h"

#include <tvm/ffi/error.h>

#include <bit>
#include <cstring>
#include <string>

namespace smartmem::opencl {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Bytes;
using tvm::ffi::String;

static_assert(std::endian::native == std::endian::little);

class Writer {
 public:
  template <typename T>
  void Number(T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void Text(const char* data, size_t size) {
    Number<uint64_t>(size);
    out.append(data, size);
  }
  template <typename List, typename Item>
  void Items(const List& list, Item write) {
    Number<uint64_t>(list.size());
    for (const auto& item : list) write(item);
  }
  std::string out;
};

class Reader {
 public:
  explicit Reader(const Bytes& bytes) : data_(bytes.data()), left_(bytes.size()) {}
  template <typename T>
  T Number() {
    T value;
    std::memcpy(&value, Take(sizeof(T)), sizeof(T));
    return value;
  }
  std::string Text() {
    const auto size = Number<uint64_t>();
    return std::string(Take(size), size);
  }
  template <typename Item>
  void Items(Item read) {
    for (auto count = Number<uint64_t>(); count > 0; --count) read();
  }

 private:
  const char* Take(uint64_t size) {
    if (size > left_) {
      TVM_FFI_THROW(ValueError) << "the saved OpenCL module ends too early: the file is damaged, or was written by "
                                   "another version of TVM; export the model again.";
    }
    const char* begin = data_;
    data_ += size;
    left_ -= size;
    return begin;
  }
  const char* data_;
  uint64_t left_;
};

}  // namespace

Bytes Serialize(const ModuleData& data) {
  Writer writer;
  const auto text = [&](const String& value) { writer.Text(value.data(), value.size()); };
  text(data.format);
  writer.Items(data.functions, [&](const auto& entry) {
    const FunctionInfo& info = entry.second;
    text(entry.first);
    text(info->name);
    writer.Items(info->arg_types, [&](DLDataType type) {
      writer.Number<uint8_t>(type.code);
      writer.Number<uint8_t>(type.bits);
      writer.Number<uint16_t>(type.lanes);
    });
    writer.Items(info->launch_param_tags, text);
    writer.Items(info->arg_extra_tags, [&](int tag) { writer.Number<int32_t>(tag); });
  });
  writer.Text(data.code.data(), data.code.size());
  return Bytes(std::move(writer.out));
}

ModuleData Deserialize(const Bytes& bytes) {
  Reader reader(bytes);
  ModuleData data;
  data.format = reader.Text();
  reader.Items([&] {
    const String key = reader.Text();
    auto info = tvm::ffi::make_object<FunctionInfoObj>();
    info->name = reader.Text();
    reader.Items([&] {
      const auto code = reader.Number<uint8_t>();
      const auto bits = reader.Number<uint8_t>();
      info->arg_types.push_back(DLDataType{code, bits, reader.Number<uint16_t>()});
    });
    reader.Items([&] { info->launch_param_tags.push_back(reader.Text()); });
    reader.Items([&] { info->arg_extra_tags.push_back(reader.Number<int32_t>()); });
    data.functions.Set(key, FunctionInfo(std::move(info)));
  });
  data.code = Bytes(reader.Text());
  return data;
}

}  // namespace smartmem::opencl
