// SPDX-License-Identifier: Apache-2.0
// The manifest: facts about a compiled model, in a file beside its code.
#pragma once

#include <tvm/ffi/dtype.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace smartmem::run {

using NamedShape = std::pair<std::string, std::vector<int64_t>>;

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
  bool length = false;               // whether its last input is a number of positions, which is no input of a caller
};

// Where the items or positions of an open dimension lie in a tensor: `each * ((count + more) / step)` elements of an
// axis (`ir/mask_positions.py`).
struct OpenPlace {
  size_t axis;
  int64_t each, more, step;

  int64_t Of(int64_t count) const { return each * ((count + more) / step); }
};

// An open dimension: the counts that a call may have, and the places of each input and output, none where it is not.
struct OpenRange {
  int64_t least, most;
  std::vector<std::vector<OpenPlace>> inputs, outputs;
};

struct OpenTile {
  size_t size;  // among the sizes
  int64_t items, cost;
};

// Functions that differ in their items only (`ir/several_sizes.py`): tiles of items, or, with a length, capacities of
// positions, from the smallest one on. Then `around` has items that are computed one by one.
struct OpenGroup {
  OpenRange along;
  bool length = false;
  std::optional<OpenRange> around;
  std::vector<OpenTile> tiles;
};

struct Manifest {
  std::string folder, library;
  DLDeviceType device;  // kDLCPU or kDLOpenCL
  bool textures, streamed;
  std::vector<SizeInfo> sizes;  // one, of function "main", for most models
  std::vector<OpenGroup> open;  // of a model with an open dimension
  std::vector<WeightPlace> weights;
  std::map<std::string, std::string> sums;  // file -> SHA-256
};

inline constexpr const char* kWeights = "weights.bin";

// Throws if the folder holds no compiled model, or one for another kind of machine, device or TVM.
Manifest ReadManifest(const std::string& folder);

// Throws if a file differs from its checksum in the manifest; reads all files.
void CheckSums(const Manifest& manifest);

}  // namespace smartmem::run
