// SPDX-License-Identifier: Apache-2.0
#include "manifest.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/runtime/base.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "sha256.h"

namespace smartmem::run {
namespace {

using tvm::ffi::Any;
using tvm::ffi::String;
namespace json = tvm::ffi::json;

constexpr int64_t kFormat = 9;
constexpr int64_t kOldest = 5;  // of one size, and otherwise the same
constexpr const char* kName = "manifest.json";
constexpr int kDeepest = 32;  // nesting of brackets: the parser recurses for each
constexpr int64_t kMost = 64 << 20;

#if defined(__aarch64__)
constexpr std::string_view kCpu = "aarch64";
#elif defined(__x86_64__)
constexpr std::string_view kCpu = "x86_64";
#else
constexpr std::string_view kCpu = "";
#endif
#if defined(__ANDROID__)
constexpr bool kAndroid = true;
#else
constexpr bool kAndroid = false;
#endif

[[noreturn]] void Refuse(const std::string& folder) {
  TVM_FFI_THROW(ValueError) << folder << "/" << kName << " is not the one that was written: compile the model again.";
  __builtin_unreachable();
}

// A value of the file; every accessor throws if the value has another type.
class Value {
 public:
  Value(Any value, const std::string* folder) : value_(std::move(value)), folder_(folder) {}

  template <typename T>
  T As() const {
    if (std::optional<T> found = value_.try_cast<T>()) return *std::move(found);
    Refuse(*folder_);
  }

  bool IsNull() const { return value_ == nullptr; }

  bool IsList() const { return value_.try_cast<json::Array>().has_value(); }

  std::optional<Value> Find(const char* key) const {
    const auto object = As<json::Object>();
    const auto found = object.find(String(key));
    if (found == object.end() || (*found).second == nullptr) return std::nullopt;
    return Value((*found).second, folder_);
  }

  Value operator[](const char* key) const {
    if (std::optional<Value> found = Find(key)) return *found;
    Refuse(*folder_);
  }

  std::string Text() const { return As<String>(); }

  uint64_t Size() const {
    const int64_t size = As<int64_t>();
    if (size < 0) Refuse(*folder_);
    return static_cast<uint64_t>(size);
  }

  template <typename Work>
  void ForEach(const Work& work) const {
    for (const Any& each : As<json::Array>()) work(Value(each, folder_));
  }

  DLDataType DType(const std::string& name) const {
    try {
      return tvm::ffi::StringToDLDataType(String(name));
    } catch (const tvm::ffi::Error&) {
      Refuse(*folder_);
    }
  }

  uint64_t Bytes(const std::vector<int64_t>& shape, DLDataType dtype) const {
    uint64_t bytes = (static_cast<uint64_t>(dtype.bits) * dtype.lanes + 7) / 8;
    for (const int64_t size : shape) {
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) Refuse(*folder_);
    }
    return bytes;
  }

  std::vector<int64_t> Shape() const {
    std::vector<int64_t> shape;
    ForEach([&](const Value& size) { shape.push_back(static_cast<int64_t>(size.Size())); });
    return shape;
  }

 private:
  Any value_;
  const std::string* folder_;
};

// Returns whether brackets are nested deeper than in any valid file.
bool TooDeep(const std::string& text) {
  int depth = 0;
  for (const char each : text) {
    if (each == '[' || each == '{') ++depth;
    if (each == ']' || each == '}') --depth;
    if (depth > kDeepest) return true;
  }
  return false;
}

Value Parsed(const std::string& folder) {
  std::ifstream file(folder + "/" + kName, std::ios::binary);
  if (!file) {
    TVM_FFI_THROW(ValueError) << folder << " holds no compiled model: make one with `smartmem compile MODEL -o "
                              << folder << "`.";
  }
  file.seekg(0, std::ios::end);
  const int64_t size = file.tellg();
  if (size < 0 || size > kMost) Refuse(folder);
  file.seekg(0);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (TooDeep(text)) Refuse(folder);
  String problem;
  Any value = json::Parse(String(text), &problem);
  if (!problem.empty()) Refuse(folder);
  return Value(std::move(value), &folder);
}

bool StartsWith(const std::string& text, std::string_view start) { return text.compare(0, start.size(), start) == 0; }

// Like `smartmem_tvm.narrow.storage_of`.
std::string KeptAs(const std::string& dtype) {
  if (dtype == "int4" || dtype == "int2") return "int8";
  if (dtype == "uint4" || dtype == "uint2") return "uint8";
  const bool narrow = StartsWith(dtype, "float8_") || StartsWith(dtype, "float6_") || StartsWith(dtype, "float4_");
  return narrow ? "uint8" : dtype;
}

TensorInfo Input(const Value& value) {
  TensorInfo info;
  info.name = value["name"].Text();
  info.dtype = value["dtype"].Text();
  info.kept = value.DType(KeptAs(info.dtype));
  info.shape = value["shape"].Shape();
  info.bytes = value.Bytes(info.shape, info.kept);
  const std::optional<Value> below = value.Find("ids_below");
  info.ids_below = below ? static_cast<int64_t>(below->Size()) : 0;
  return info;
}

// Returns the place of a tensor, which is taken out of the list.
template <typename Tensor, typename Is>
size_t TakeOut(const std::string& folder, std::vector<std::pair<size_t, Tensor>>* tensors, const Is& is,
               Tensor* taken) {
  for (auto each = tensors->begin(); each != tensors->end(); ++each) {
    if (!is(each->second)) continue;
    const size_t place = each->first;
    *taken = std::move(each->second);
    tensors->erase(each);
    return place;
  }
  Refuse(folder);
}

template <typename Tensor>
void Place(Tensor tensor, std::vector<std::pair<size_t, Tensor>>* tensors) {
  tensors->emplace_back(tensors->size(), std::move(tensor));
}

SizeInfo Size(const std::string& folder, const Value& value, std::string function) {
  SizeInfo size;
  size.function = std::move(function);
  std::vector<std::pair<size_t, TensorInfo>> inputs;
  std::vector<std::pair<size_t, std::string>> outputs;
  value["inputs"].ForEach([&](const Value& each) { Place(Input(each), &inputs); });
  value["outputs"].ForEach([&](const Value& each) { Place(each.Text(), &outputs); });
  if (const std::optional<Value> caches = value.Find("caches")) {
    caches->ForEach([&](const Value& each) {
      CacheInfo cache;
      const std::string input = each["input"].Text(), output = each["output"].Text();
      std::string taken;
      const auto is_input = [&](const TensorInfo& one) { return one.name == input; };
      const auto is_output = [&](const std::string& one) { return one == output; };
      cache.argument = TakeOut(folder, &inputs, is_input, &cache.tensor);
      cache.result = TakeOut(folder, &outputs, is_output, &taken);
      cache.axis = each["axis"].Size();
      if (cache.axis >= cache.tensor.shape.size()) Refuse(folder);
      const std::optional<Value> sequences = each.Find("sequences");
      cache.sequences = sequences ? sequences->Size() : 1;
      size.caches.push_back(std::move(cache));
    });
  }
  const auto before = [](const CacheInfo& one, const CacheInfo& other) { return one.argument < other.argument; };
  std::sort(size.caches.begin(), size.caches.end(), before);
  for (auto& [place, input] : inputs) size.inputs.push_back(std::move(input));
  for (auto& [place, output] : outputs) size.outputs.push_back(std::move(output));
  return size;
}

std::vector<OpenPlace> Places(const Value& value) {
  std::vector<OpenPlace> places;
  const auto add = [&](const Value& each) {
    OpenPlace place{each["axis"].Size(), static_cast<int64_t>(each["each"].Size()), 0, 1};
    if (const std::optional<Value> more = each.Find("more")) place.more = more->As<int64_t>();
    if (const std::optional<Value> step = each.Find("step")) place.step = step->As<int64_t>();
    places.push_back(place);
  };
  if (value.IsList()) {
    value.ForEach(add);
  } else if (!value.IsNull()) {
    add(value);
  }
  return places;
}

OpenRange Range(const std::string& folder, const Value& value) {
  OpenRange range;
  range.least = static_cast<int64_t>(value["least"].Size());
  range.most = static_cast<int64_t>(value["most"].Size());
  value["inputs"].ForEach([&](const Value& each) { range.inputs.push_back(Places(each)); });
  value["outputs"].ForEach([&](const Value& each) { range.outputs.push_back(Places(each)); });
  if (range.least < 1 || range.most < range.least) Refuse(folder);
  return range;
}

// Refuses places that a function does not have, of inputs with `items`, and numbers with which none could be counted.
void CheckPlaces(const std::string& folder, const OpenRange& range, const SizeInfo& size, int64_t items, bool several) {
  constexpr int64_t kLargest = int64_t{1} << 31;  // of a number: products of two do not overflow
  if (range.inputs.size() != size.inputs.size() || range.outputs.size() != size.outputs.size()) Refuse(folder);
  if (range.most > kLargest || items < 1 || items > kLargest) Refuse(folder);
  const auto check = [&](const std::vector<OpenPlace>& places) {
    if (places.size() > 1 && !several) Refuse(folder);
    for (const OpenPlace& each : places) {
      const bool counts = each.each >= 1 && each.each < kLargest && each.step >= 1;
      if (!counts || each.more <= -kLargest || each.more >= kLargest) Refuse(folder);
    }
  };
  for (const std::vector<OpenPlace>& each : range.outputs) check(each);
  for (size_t i = 0; i < size.inputs.size(); ++i) {
    check(range.inputs[i]);
    const std::vector<int64_t>& shape = size.inputs[i].shape;
    for (const OpenPlace& each : range.inputs[i]) {
      if (each.axis >= shape.size() || shape[each.axis] != each.each * items) Refuse(folder);
    }
  }
}

OpenGroup Group(const std::string& folder, const Value& value, std::vector<SizeInfo>* sizes) {
  OpenGroup group;
  group.along = Range(folder, value);
  if (const std::optional<Value> length = value.Find("length")) group.length = length->As<bool>();
  if (const std::optional<Value> around = value.Find("around")) group.around = Range(folder, *around);
  value["tiles"].ForEach([&](const Value& each) {
    const std::string function = each["function"].Text();
    const auto is = [&](const SizeInfo& size) { return size.function == function; };
    const auto found = std::find_if(sizes->begin(), sizes->end(), is);
    if (found == sizes->end() || !found->caches.empty()) Refuse(folder);
    const auto items = static_cast<int64_t>(each["items"].Size());
    CheckPlaces(folder, group.along, *found, items, group.length);
    if (group.around) CheckPlaces(folder, *group.around, *found, 1, false);
    found->length = group.length;
    group.tiles.push_back({static_cast<size_t>(found - sizes->begin()), items, static_cast<int64_t>(each["cost"].Size())});
  });
  if (group.tiles.empty() || (group.around && !group.length)) Refuse(folder);
  const auto smaller = [](const OpenTile& one, const OpenTile& other) { return one.items < other.items; };
  if (group.length) {
    std::sort(group.tiles.begin(), group.tiles.end(), smaller);
    if (group.tiles.back().items < group.along.most) Refuse(folder);
  }
  return group;
}

WeightPlace Weight(const Value& value) {
  WeightPlace place;
  place.offset = value["offset"].Size();
  place.shape = value["shape"].Shape();
  place.dtype = value.DType(value["dtype"].Text());
  place.bytes = value.Bytes(place.shape, place.dtype);
  place.scope = value["scope"].Text();
  return place;
}

void CheckVersions(const std::string& folder, const Value& all) {
  if (const int64_t format = all["format"].As<int64_t>(); format < kOldest || format > kFormat) {
    TVM_FFI_THROW(ValueError) << folder << " was written in format " << format << ", and this program reads formats "
                              << kOldest << " to " << kFormat << ": compile the model again, or build the program of that version.";
  }
  const std::string tvm = all["apache-tvm"].Text();
  if (!StartsWith(tvm, TVM_VERSION)) {
    TVM_FFI_THROW(ValueError) << folder << " was compiled by TVM " << tvm << ", and this program was built for TVM "
                              << TVM_VERSION << ": compile the model again, or build the program for that TVM.";
  }
}

void CheckMachine(const std::string& folder, const Value& all) {
  const std::string host = all["host"].Text();
  const bool android = host.find("android") != std::string::npos;
  if (!host.empty() && (host.substr(0, host.find('-')) != kCpu || android != kAndroid)) {
    TVM_FFI_THROW(ValueError) << folder << " was compiled for the CPU " << host << ", and this is a program for "
                              << kCpu << (kAndroid ? " and Android" : "") << ": build the program for that CPU.";
  }
  if (all["library"].Text() != "lib.so") {
    TVM_FFI_THROW(ValueError) << folder << " holds code that is not linked yet: "
                              << (all.Find("link") ? all["link"].Text() : "compile it where there is a linker.");
  }
}

// Reads from the target: the device, and whether it has textures.
void ReadTarget(const std::string& folder, const Value& all, Manifest* manifest) {
  String problem;
  Any parsed = json::Parse(String(all["target"].Text()), &problem);
  if (!problem.empty()) Refuse(folder);
  const Value target(std::move(parsed), &folder);
  const std::string kind = target["kind"].Text();
  if (kind != "llvm" && kind != "opencl") {
    TVM_FFI_THROW(ValueError) << folder << " was compiled for " << kind << ", and this program runs on CPUs and OpenCL "
                              << "devices: compile it for one of these.";
  }
  manifest->device = kind == "llvm" ? kDLCPU : kDLOpenCL;
  manifest->textures = false;
  target["keys"].ForEach([&](const Value& key) { manifest->textures |= key.Text() == "texture"; });
}

}  // namespace

Manifest ReadManifest(const std::string& folder) {
  const Value all = Parsed(folder);
  CheckVersions(folder, all);
  CheckMachine(folder, all);
  Manifest manifest;
  manifest.folder = folder;
  manifest.library = all["library"].Text();
  ReadTarget(folder, all, &manifest);
  manifest.streamed = all.Find("stream").has_value();
  if (const std::optional<Value> sizes = all.Find("sizes")) {
    if (manifest.streamed) {
      TVM_FFI_THROW(ValueError) << folder << " has several sizes and a memory budget, which this program does not know "
                                << "together: compile the model at one size, or without the budget.";
    }
    sizes->ForEach([&](const Value& each) { manifest.sizes.push_back(Size(folder, each, each["function"].Text())); });
    if (manifest.sizes.empty()) Refuse(folder);
  } else {
    manifest.sizes.push_back(Size(folder, all, "main"));
  }
  if (const std::optional<Value> open = all.Find("open")) {
    open->ForEach([&](const Value& each) { manifest.open.push_back(Group(folder, each, &manifest.sizes)); });
  }
  all["weights"].ForEach([&](const Value& each) { manifest.weights.push_back(Weight(each)); });
  for (const auto& [file, sum] : all["sha256"].As<json::Object>()) {
    manifest.sums[Value(file, &folder).Text()] = Value(sum, &folder).Text();
  }
  return manifest;
}

void CheckSums(const Manifest& manifest) {
  for (const std::string& file : {manifest.library, std::string(kWeights)}) {
    const auto sum = manifest.sums.find(file);
    const std::string path = manifest.folder + "/" + file;
    if (sum == manifest.sums.end() || Sha256OfFile(path) != sum->second) {
      TVM_FFI_THROW(ValueError) << path << " is missing or not the one that was compiled: compile the model again, or "
                                << "copy the folder again.";
    }
  }
}

}  // namespace smartmem::run
