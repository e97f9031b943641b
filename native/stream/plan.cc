// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <limits>

namespace smartmem::stream {
namespace {

constexpr int64_t kAlignment = 64;  // bytes, the alignment that TVM's kernels are compiled for
constexpr size_t kNumbers = 6;      // of a load

std::string Show(const Plan& plan, size_t load) {
  return "load " + std::to_string(load) + " (layer '" + plan.names[load] + "')";
}

[[noreturn]] void Refuse(const std::string& what, const std::string& rule) {
  TVM_FFI_THROW(ValueError) << "a plan for streaming weights is wrong, as " << what << " " << rule
                            << ": make the plan anew for this model.";
  __builtin_unreachable();
}

// Returns whether `bytes` from `offset` on lie within `all`, without a sum that could overflow.
bool Within(int64_t offset, int64_t bytes, int64_t all) {
  return offset >= 0 && bytes >= 0 && bytes <= all && offset <= all - bytes;
}

void CheckLoad(const Plan& plan, size_t index, int64_t file_bytes, int64_t pinned) {
  const Load& load = plan.loads[index];
  const auto refuse = [&](const std::string& rule) { Refuse(Show(plan, index), rule); };
  if (!Within(load.file_offset, load.bytes, file_bytes)) {
    refuse("is not within the " + std::to_string(file_bytes) + " bytes of the file");
  }
  if (!Within(load.arena_offset, load.bytes, plan.arena_bytes)) {
    refuse("is not within the " + std::to_string(plan.arena_bytes) + " bytes of the arena");
  }
  if (load.arena_offset % kAlignment != 0) refuse("begins at no multiple of 64 bytes of the arena");
  if (load.step < 0 || load.step >= kMostSteps) refuse("is of step " + std::to_string(load.step));
  if (load.after < -1 || load.after >= load.step) refuse("begins after a step that is not before its own");
  if (pinned != 0 && pinned != 1) refuse("is neither pinned, 1, nor not, 0");
  if (load.pinned && load.after != -1) refuse("is pinned and waits for a step");
}

// One thread loads in this order: a load after one that waits for a step arrives too late for that step.
void CheckOrder(const Plan& plan) {
  size_t last = 0;  // the load so far that waits for the latest step
  for (const size_t index : plan.order) {
    if (plan.loads[index].after > plan.loads[last].after || index == plan.order.front()) last = index;
    if (plan.loads[last].after < plan.loads[index].step) continue;
    Refuse(Show(plan, index), "comes behind " + Show(plan, last) + ", which waits for a step that needs it");
  }
}

}  // namespace

Plan::Plan(int64_t file_bytes, int64_t arena_bytes, const tvm::ffi::Shape& offsets, const tvm::ffi::Shape& loads,
           const tvm::ffi::Array<tvm::ffi::String>& names, int64_t patience_ms)
    : arena_bytes(arena_bytes),
      offsets(offsets.begin(), offsets.end()),
      names(names.begin(), names.end()),
      patience(patience_ms) {
  if (arena_bytes < 0) Refuse("the arena", "has less than no bytes");
  if (patience_ms < 1 || patience_ms > std::numeric_limits<int32_t>::max()) {
    Refuse("the patience", "is not from 1 to 2147483647 ms");
  }
  if (loads.size() % kNumbers != 0 || loads.size() / kNumbers != names.size()) {
    Refuse("each load", "has six numbers and one name, and there are " + std::to_string(loads.size()) + " and " +
                            std::to_string(names.size()));
  }
  for (size_t index = 0; index < this->offsets.size(); ++index) {
    const int64_t offset = this->offsets[index];
    if (Within(offset, 0, arena_bytes) && offset % kAlignment == 0) continue;
    Refuse("tensor " + std::to_string(index), "is not in the arena at a multiple of 64 bytes");
  }
  for (size_t index = 0; index < names.size(); ++index) {
    const int64_t* each = loads.data() + index * kNumbers;
    this->loads.push_back({each[0], each[1], each[2], each[3], each[4], each[5] == 1});
    CheckLoad(*this, index, file_bytes, each[5]);
    order.push_back(index);
    pinned += this->loads.back().pinned;
  }
  std::stable_partition(order.begin(), order.end(), [this](size_t index) { return this->loads[index].pinned; });
  CheckOrder(*this);
}

}  // namespace smartmem::stream
