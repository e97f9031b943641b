// SPDX-License-Identifier: Apache-2.0
// The manifest: facts about a compiled model, in a file beside its code.
#pragma once

#include <tvm/ffi/dtype.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace smartmem::run {

struct TensorInfo {
  std::string name, dtype;  // the model's
  DLDataType kept;          // the type in memory: a byte for each number of fewer than eight bits
  std::vector<int64_t> shape;
  uint64_t bytes;
  int64_t ids_below;
};

struct WeightPlace {
  uint64_t offset, bytes;
  std::vector<int64_t> shape;
  DLDataType dtype;
  std::string scope;
};

// A tensor that the model keeps: an argument and a result of the function, and no input or output of a caller.
struct CacheInfo {
  TensorInfo tensor;
  size_t argument, result;  // places among all arguments and results
  size_t axis;              // the dimension of its rows
  int64_t sequences;        // how many have a length of their own
};

// A function of the code, for one size of the inputs.
struct SizeInfo {
  std::string function;
  std::vector<TensorInfo> inputs;    // without caches
  std::vector<std::string> outputs;  // without caches
  std::vector<CacheInfo> caches;     // in the order of their arguments
};

struct Manifest {
  std::string folder, library;
  DLDeviceType device;  // kDLCPU or kDLOpenCL
  bool textures, streamed;
  std::vector<SizeInfo> sizes;  // one, of function "main", for most models
  std::vector<WeightPlace> weights;
  std::map<std::string, std::string> sums;  // file -> SHA-256
};

inline constexpr const char* kWeights = "weights.bin";

// Throws if the folder holds no compiled model, or one for another kind of machine, device or TVM.
Manifest ReadManifest(const std::string& folder);

// Throws if a file differs from its checksum in the manifest; reads all files.
void CheckSums(const Manifest& manifest);

}  // namespace smartmem::run
