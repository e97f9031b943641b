// SPDX-License-Identifier: Apache-2.0
// A loaded model: code, weights, inputs, outputs.
#pragma once

#include <tvm/ffi/any.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libraries.h"
#include "manifest.h"

namespace smartmem::run {

// All functions are thread-safe: one mutex serializes them.
class Model {
 public:
  Model(const std::string& folder, int device_index, bool check);

  const char* device() const { return manifest_.device == kDLCPU ? "cpu" : "opencl"; }
  const std::vector<TensorInfo>& inputs() const { return manifest_.inputs; }
  size_t output_count() const { return manifest_.outputs.size(); }
  const TensorInfo& Output(size_t index);  // throws before the first run

  void SetInput(const std::string& name, const void* data, uint64_t bytes);
  void Run();
  void GetOutput(const std::string& name, void* data, uint64_t bytes);

 private:
  void Start();
  void CheckArity() const;
  void NeedRun() const;

  Manifest manifest_;
  std::shared_ptr<Code> code_;  // outlives the objects that it created
  DLDevice device_;
  std::optional<tvm::ffi::Module> machine_;
  tvm::ffi::Function main_;
  std::vector<tvm::ffi::Any> arguments_;  // inputs, then weights or their stream
  std::vector<bool> given_;

  std::mutex mutex_;
  std::vector<tvm::runtime::Tensor> results_;
  std::vector<TensorInfo> outputs_;
};

}  // namespace smartmem::run
