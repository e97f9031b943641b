// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/runtime/device_api.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cache_block.h"
#include "weights.h"

namespace smartmem::run {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::String;
using tvm::runtime::Tensor;

constexpr int kPooled = 2;         // TVM's pooled allocator
constexpr int kTextureScopes = 3;  // TVM numbers them like devices (transform/layout/check_textures.py)

Any Call(const Function& function, const std::vector<Any>& arguments) {
  const std::vector<AnyView> views(arguments.begin(), arguments.end());
  Any result;
  function.CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
  return result;
}

Function Method(const Module& module, const char* name, const std::string& folder) {
  if (auto found = module->GetFunction(String(name))) return *found;
  TVM_FFI_THROW(ValueError) << folder << " holds a library without " << name << ": compile the model again.";
  __builtin_unreachable();
}

void Flatten(const Any& result, std::vector<Tensor>* tensors) {
  if (auto tensor = result.try_cast<tvm::ffi::Tensor>()) {
    tensors->push_back(*tensor);
  } else if (auto several = result.try_cast<Array<Any>>()) {
    for (const Any& each : *several) Flatten(each, tensors);
  } else {
    TVM_FFI_THROW(TypeError) << "the model returns a " << result.GetTypeKey() << ", and this program takes tensors: "
                             << "run it in Python.";
  }
}

TensorInfo Described(const std::string& name, const Tensor& tensor) {
  TensorInfo info;
  info.name = name;
  info.kept = tensor.DataType();
  info.dtype = tvm::ffi::DLDataTypeToString(info.kept);
  info.shape.assign(tensor.Shape().begin(), tensor.Shape().end());
  info.bytes = tvm::ffi::GetDataSize(*tensor.operator->());
  info.ids_below = 0;
  return info;
}

std::string Names(const std::vector<TensorInfo>& tensors) {
  std::string text;
  for (const TensorInfo& each : tensors) text += (text.empty() ? "'" : ", '") + each.name + "'";
  return text.empty() ? "none" : text;
}

size_t Index(const std::vector<TensorInfo>& tensors, const std::string& name, const char* what) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return i;
  }
  TVM_FFI_THROW(ValueError) << "the model has no " << what << " '" << name << "': use one of its names, "
                            << Names(tensors) << ".";
  __builtin_unreachable();
}

void CheckBytes(const TensorInfo& tensor, uint64_t bytes, const char* what) {
  if (bytes == tensor.bytes) return;
  TVM_FFI_THROW(ValueError) << what << " '" << tensor.name << "' has " << tensor.bytes << " bytes, and " << bytes
                            << " were given: give all its numbers of type " << tensor.dtype << ", and nothing else.";
}

// Appends a name and a shape to a list.
void Append(const std::string& name, const std::vector<int64_t>& shape, const char* between, std::string* text) {
  std::string sizes;
  for (const int64_t size : shape) sizes += (sizes.empty() ? "" : "x") + std::to_string(size);
  *text += (text->empty() ? "'" : std::string(between) + "'") + name + "' " + (sizes.empty() ? "scalar" : sizes);
}

// Returns whether the inputs of a size have these shapes; it may have others beside them.
bool Takes(const SizeInfo& size, const std::vector<NamedShape>& shapes) {
  for (const auto& [name, shape] : shapes) {
    const TensorInfo& input = size.inputs[Index(size.inputs, name, "input")];
    if (input.shape != shape) return false;
  }
  return true;
}

void Clear(const Tensor& tensor) {
  const std::vector<char> zeros(tvm::ffi::GetDataSize(*tensor.operator->()));
  if (!zeros.empty()) Tensor(tensor).CopyFromBytes(zeros.data(), zeros.size());
}

void NeedDevice(DLDevice device, const std::string& folder) {
  Any exists;
  tvm::runtime::DeviceAPI::Get(device)->GetAttr(device, tvm::runtime::kExist, &exists);
  if (exists.cast<int>() != 0) return;
  // Our library knows why there is no device.
  const auto ask = Function::GetGlobal("smartmem.opencl.problem");
  const std::string problem = ask.has_value() ? std::string((*ask)().cast<String>()) : "";
  if (!problem.empty()) TVM_FFI_THROW(RuntimeError) << problem;
  TVM_FFI_THROW(ValueError) << "there is no OpenCL device " << device.device_id << ", and " << folder
                            << " was compiled for one: give the number of another, or install the device's driver.";
}

}  // namespace

Model::Model(const std::string& folder, int device_index, bool check) : manifest_(ReadManifest(folder)) {
  if (check) CheckSums(manifest_);
  OpenLibraries(manifest_);
  device_ = {manifest_.device, manifest_.device == kDLCPU ? 0 : device_index};
  NeedDevice(device_, folder);
  code_ = Code::Open(folder + "/" + manifest_.library);
  Start();
}

void Model::Start() {
  machine_ = Method(code_->module(), "vm_load_executable", manifest_.folder)().cast<Module>();
  std::vector<Any> devices;
  const int same = manifest_.textures ? 1 + kTextureScopes : 1;
  for (int i = 0; i < same; ++i) {
    for (const int each : {static_cast<int>(device_.device_type), device_.device_id, kPooled}) devices.push_back(each);
  }
  if (device_.device_type != kDLCPU) {
    for (const int each : {static_cast<int>(kDLCPU), 0, kPooled}) devices.push_back(each);
  }
  Call(Method(*machine_, "vm_initialization", manifest_.folder), devices);
  if (manifest_.streamed) {
    weights_.push_back(Function::GetGlobalRequired("smartmem.stream.load")(String(manifest_.folder)));
  } else {
    for (Tensor& weight : LoadWeights(manifest_, device_)) weights_.push_back(std::move(weight));
  }
  if (manifest_.device == kDLCPU) caches_ = CachesInOneBlock(manifest_);
  bound_.resize(manifest_.sizes.size());
  if (is_open()) return AskFor(Ask(manifest_, {}));
  Chosen();
}

Model::Bound& Model::BoundAt(size_t size) {
  std::optional<Bound>& bound = bound_[size];
  if (!bound) {
    Bound made;
    Bind(manifest_.sizes[size], &made);
    bound = std::move(made);
  }
  return *bound;
}

// Uses a size of an open dimension; inputs that were given for another shape are not kept.
void Model::AskFor(AskedSize asked) {
  const auto same = [&](const std::unique_ptr<AskedSize>& each) {
    return each->group == asked.group && each->count == asked.count && each->around == asked.around;
  };
  auto found = std::find_if(known_.begin(), known_.end(), same);
  if (found == known_.end()) found = known_.insert(known_.end(), std::make_unique<AskedSize>(std::move(asked)));
  HostTensors held;
  std::vector<bool> given;
  for (size_t i = 0; i < (*found)->inputs.size(); ++i) {
    const TensorInfo& info = (*found)->inputs[i];
    const bool kept = i < held_.size() && held_given_[i] && held_[i].info.shape == info.shape;
    held.push_back(kept ? std::move(held_[i]) : HostTensor{info, {}});
    given.push_back(kept);
  }
  held_ = std::move(held);
  held_given_ = std::move(given);
  results_.clear();
  outputs_.clear();
  whole_.clear();
  asked_ = found->get();
}

Tensor Model::Cache(const TensorInfo& info) {
  const tvm::ffi::Shape shape(info.shape.begin(), info.shape.end());
  const auto found = caches_.find(info.name);
  if (found == caches_.end()) {
    const Tensor made = Tensor::Empty(shape, info.kept, device_);
    Clear(made);
    return caches_.emplace(info.name, made).first->second;
  }
  const Tensor& tensor = found->second;
  const std::vector<int64_t> there(tensor.Shape().begin(), tensor.Shape().end());
  if (there == info.shape && tensor.DataType() == info.kept) return tensor;
  TVM_FFI_THROW(ValueError) << manifest_.folder << " has sizes with different caches '" << info.name
                            << "': compile the model again.";
  __builtin_unreachable();
}

void Model::ClearCaches() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, tensor] : caches_) Clear(tensor);
}

void Model::GetCache(const std::string& name, void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Tensor& tensor = caches_.at(name);
  tensor.CopyToBytes(data, tvm::ffi::GetDataSize(*tensor.operator->()));
}

void Model::PutCache(const std::string& name, const void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Tensor& tensor = caches_.at(name);
  tensor.CopyFromBytes(data, tvm::ffi::GetDataSize(*tensor.operator->()));
}

void Model::Bind(const SizeInfo& size, Bound* bound) {
  bound->function = Method(*machine_, size.function.c_str(), manifest_.folder);
  for (const TensorInfo& input : size.inputs) {
    const tvm::ffi::Shape shape(input.shape.begin(), input.shape.end());
    bound->arguments.push_back(Tensor::Empty(shape, input.kept, device_));
    bound->places.push_back(bound->arguments.size() - 1);
  }
  for (const CacheInfo& cache : size.caches) {  // in the order of their places
    // On GPUs functions take caches after all other inputs (transform/memory/fix_addresses.py).
    const size_t at = manifest_.device == kDLCPU ? cache.argument : bound->arguments.size();
    if (at > bound->arguments.size()) TVM_FFI_THROW(ValueError) << manifest_.folder << ": compile the model again.";
    bound->arguments.insert(bound->arguments.begin() + static_cast<ptrdiff_t>(at), Cache(cache.tensor));
    for (size_t& place : bound->places) place += place >= at;
  }
  if (size.length) {
    bound->length = Tensor::Empty(tvm::ffi::Shape({1}), DLDataType{kDLInt, 64, 1}, device_);
    bound->arguments.push_back(*bound->length);
  }
  bound->arguments.insert(bound->arguments.end(), weights_.begin(), weights_.end());
  bound->given.assign(size.inputs.size(), false);
  const auto arity = Method(*machine_, "get_function_arity", manifest_.folder);
  const auto takes = arity(String(size.function)).cast<int64_t>();
  if (takes == static_cast<int64_t>(bound->arguments.size())) return;
  TVM_FFI_THROW(ValueError) << manifest_.folder << " has code for " << takes << " inputs and weights and lists "
                            << bound->arguments.size() << ": compile the model again.";
}

void Model::UseSize(size_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_open()) return AskFor(OwnSize(manifest_, number));
  if (number == chosen_) return;
  results_.clear();
  outputs_.clear();
  const size_t before = chosen_.exchange(number);
  try {
    Chosen();
  } catch (...) {
    chosen_ = before;
    throw;
  }
}

void Model::ChooseSize(const std::vector<NamedShape>& shapes) {
  if (is_open()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return AskFor(Ask(manifest_, shapes));
  }
  for (size_t number = 0; number < manifest_.sizes.size(); ++number) {
    if (Takes(manifest_.sizes[number], shapes)) return UseSize(number);
  }
  std::string asked, known;
  for (const NamedShape& each : shapes) Append(each.first, each.second, ", ", &asked);
  for (const SizeInfo& size : manifest_.sizes) {
    std::string text;
    for (const TensorInfo& each : size.inputs) Append(each.name, each.shape, ", ", &text);
    known += (known.empty() ? "" : "; ") + text;
  }
  TVM_FFI_THROW(ValueError) << "no size of this model takes " << asked << "; it has " << known << ": give one of "
                            << "these, or compile the model for this one as well.";
}

void Model::SetInput(const std::string& name, const void* data, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t index = Index(inputs(), name, "input");
  CheckBytes(inputs()[index], bytes, "input");
  if (is_open()) {
    const char* numbers = static_cast<const char*>(data);
    held_[index].data.assign(numbers, numbers + bytes);
    held_given_[index] = true;
    return;
  }
  Bound& bound = Chosen();
  if (bytes > 0) bound.arguments[bound.places[index]].cast<Tensor>().CopyFromBytes(data, bytes);
  bound.given[index] = true;
}

void Model::NeedInputs(const std::vector<bool>& given) const {
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i]) continue;
    TVM_FFI_THROW(ValueError) << "input '" << inputs()[i].name << "' was not given: set all inputs before the "
                              << "first run.";
  }
}

void Model::Run() {
  const std::lock_guard<std::mutex> lock(mutex_);
  NeedInputs(is_open() ? held_given_ : Chosen().given);
  results_.clear();  // their memory may be reused
  outputs_.clear();
  whole_.clear();
  if (is_open()) {
    const auto run = [this](size_t size, const HostTensors& given, int64_t length) {
      return RunAt(size, given, length);
    };
    whole_ = RunOpen(*asked_, held_, run);
    for (const HostTensor& each : whole_) outputs_.push_back(each.info);
    return;
  }
  results_ = Results(chosen_);
  const std::vector<std::string>& names = manifest_.sizes[chosen_].outputs;
  for (size_t i = 0; i < results_.size(); ++i) outputs_.push_back(Described(names[i], results_[i]));
}

// Runs the function of a size with other inputs, and returns copies of its results.
HostTensors Model::RunAt(size_t size, const HostTensors& inputs, int64_t length) {
  Bound& bound = BoundAt(size);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].data.empty()) continue;
    bound.arguments[bound.places[i]].cast<Tensor>().CopyFromBytes(inputs[i].data.data(), inputs[i].data.size());
  }
  if (bound.length) bound.length->CopyFromBytes(&length, sizeof length);
  HostTensors found;
  for (const Tensor& each : Results(size)) {
    HostTensor copy{Described(manifest_.sizes[size].outputs[found.size()], each), {}};
    copy.data.resize(copy.info.bytes);
    if (!copy.data.empty()) each.CopyToBytes(copy.data.data(), copy.data.size());
    found.push_back(std::move(copy));
  }
  return found;
}

// Runs the function of a size with the inputs that are bound, and returns its results without caches.
std::vector<Tensor> Model::Results(size_t size) {
  const Bound& bound = BoundAt(size);
  const std::vector<std::string>& names = manifest_.sizes[size].outputs;
  std::vector<Tensor> results;
  Flatten(Call(bound.function, bound.arguments), &results);
  tvm::runtime::DeviceAPI::Get(device_)->StreamSync(device_, nullptr);
  const std::vector<CacheInfo>& caches = manifest_.sizes[size].caches;
  std::vector<bool> kept(results.size(), false);
  for (const CacheInfo& cache : caches) {
    if (cache.result < kept.size()) kept[cache.result] = true;
  }
  size_t place = 0;
  const auto is_kept = [&](const Tensor&) { return kept[place++]; };
  results.erase(std::remove_if(results.begin(), results.end(), is_kept), results.end());
  if (results.size() != names.size()) {
    TVM_FFI_THROW(ValueError) << manifest_.folder << " lists " << names.size() << " outputs, and its code "
                              << "returns " << results.size() << ": compile the model again.";
  }
  return results;
}

void Model::NeedRun() const {
  if (outputs_.size() == output_count()) return;
  TVM_FFI_THROW(ValueError) << "outputs are known after a run, and there was none or it failed: run the model before.";
}

const TensorInfo& Model::Output(size_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  NeedRun();
  return outputs_[index];
}

void Model::GetOutput(const std::string& name, void* data, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  NeedRun();
  const size_t index = Index(outputs_, name, "output");
  CheckBytes(outputs_[index], bytes, "output");
  if (is_open()) {
    std::copy(whole_[index].data.begin(), whole_[index].data.end(), static_cast<char*>(data));
    return;
  }
  if (bytes > 0) results_[index].CopyToBytes(data, bytes);
}

}  // namespace smartmem::run
