// SPDX-License-Identifier: Apache-2.0
// A size of a model with an open dimension: items are computed in tiles, and positions at a capacity. Like
// `deploy/tiles.py`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "manifest.h"

namespace smartmem::run {

// The inputs of a call, and how many items or positions they have.
struct AskedSize {
  const OpenGroup* group;
  int64_t count, around;  // of the open dimension, and of the items around positions
  std::vector<TensorInfo> inputs;
};

struct HostTensor {
  TensorInfo info;
  std::vector<char> data;
};

using HostTensors = std::vector<HostTensor>;
// Runs the function of a size with inputs of its own shapes; the length is that of the call.
using RunSize = std::function<HostTensors(size_t size, const HostTensors& inputs, int64_t length)>;

// Returns the size that has inputs of these shapes; an input that is not named follows from the others. Without any it
// is that of the first function. Throws if the model takes no such shapes.
AskedSize Ask(const Manifest& manifest, const std::vector<NamedShape>& shapes);
// Returns the size that a function computes at once, or the nearest one that a call may have.
AskedSize OwnSize(const Manifest& manifest, size_t size);

// Returns the results for whole inputs.
HostTensors RunOpen(const AskedSize& asked, const HostTensors& inputs, const RunSize& run);

}  // namespace smartmem::run
