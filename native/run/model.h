// SPDX-License-Identifier: Apache-2.0
// A loaded model: code, weights, inputs, outputs.
#pragma once

#include <tvm/ffi/any.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libraries.h"
#include "manifest.h"
#include "open_size.h"

namespace smartmem::run {

// All functions are thread-safe: one mutex serializes them.
class Model {
 public:
  Model(const std::string& folder, int device_index, bool check);

  const char* device() const { return manifest_.device == kDLCPU ? "cpu" : "opencl"; }
  size_t size_count() const { return manifest_.sizes.size(); }
  bool is_open() const { return !manifest_.open.empty(); }
  const std::vector<TensorInfo>& inputs() const {
    const AskedSize* asked = asked_;
    return asked != nullptr ? asked->inputs : manifest_.sizes[chosen_].inputs;
  }
  size_t output_count() const { return manifest_.sizes[chosen_].outputs.size(); }
  const TensorInfo& Output(size_t index);  // throws before the first run

  // From here on inputs and runs are those of this size; inputs that it was given before are kept.
  void UseSize(size_t number);
  // Uses the first size whose inputs have these shapes, also of an open dimension; throws if there is none.
  void ChooseSize(const std::vector<NamedShape>& shapes);
  void SetInput(const std::string& name, const void* data, uint64_t bytes);
  void Run();
  void ClearCaches();  // zeros, as after loading
  // Copy all numbers of a cache, whose type and shape the manifest has.
  void GetCache(const std::string& name, void* data);
  void PutCache(const std::string& name, const void* data);
  const Manifest& manifest() const { return manifest_; }
  void GetOutput(const std::string& name, void* data, uint64_t bytes);

 private:
  // What a size runs with, made when it is used first.
  struct Bound {
    tvm::ffi::Function function;
    std::vector<tvm::ffi::Any> arguments;  // inputs and caches in the model's order, then weights or their stream
    std::vector<size_t> places;            // of the inputs among the arguments
    std::vector<bool> given;
    std::optional<tvm::runtime::Tensor> length;  // of the positions of a call, for a function that takes it
  };

  void Start();
  Bound& Chosen() { return BoundAt(chosen_); }
  Bound& BoundAt(size_t size);
  void AskFor(AskedSize asked);
  void NeedInputs(const std::vector<bool>& given) const;
  std::vector<tvm::runtime::Tensor> Results(size_t size);
  HostTensors RunAt(size_t size, const HostTensors& inputs, int64_t length);
  void Bind(const SizeInfo& size, Bound* bound);
  tvm::runtime::Tensor Cache(const TensorInfo& info);
  void NeedRun() const;

  Manifest manifest_;
  std::shared_ptr<Code> code_;  // outlives the objects that it created
  DLDevice device_;
  std::optional<tvm::ffi::Module> machine_;
  std::vector<tvm::ffi::Any> weights_;  // or their stream
  std::atomic<size_t> chosen_{0};
  std::vector<std::optional<Bound>> bound_;
  std::map<std::string, tvm::runtime::Tensor> caches_;  // by the names of their inputs; all sizes share them

  // Of a model with an open dimension: the sizes that were asked for, of which descriptions stay valid, the one in use,
  // its inputs, which of them were given, and its results.
  std::vector<std::unique_ptr<AskedSize>> known_;
  std::atomic<const AskedSize*> asked_{nullptr};
  HostTensors held_, whole_;
  std::vector<bool> held_given_;

  std::mutex mutex_;
  std::vector<tvm::runtime::Tensor> results_;
  std::vector<TensorInfo> outputs_;
};

}  // namespace smartmem::run
