// SPDX-License-Identifier: Apache-2.0
// The plan that a model was compiled with, as the file beside its weights has it.
#pragma once

#include <string>

#include "plan.h"

namespace smartmem::stream {

struct PlanFile {
  std::string weights;  // the path of the file
  int64_t weight_bytes;
  Plan plan;
};

// Reads `stream.plan` of a folder: a line with the version, one with the name and the bytes of the weights, one with the
// bytes of the arena and the patience in ms, one with the offsets of tensors behind how many these are, one that says
// how many loads there are, and one for each of these, its six numbers and its layer. Throws if it is none.
PlanFile ReadPlan(const std::string& folder);

}  // namespace smartmem::stream
