// SPDX-License-Identifier: Apache-2.0
// Reads the plan of a compiled model from the file beside its weights.
#pragma once

#include <string>

#include "plan.h"

namespace smartmem::stream {

struct PlanFile {
  std::string weights;  // the path of the file
  int64_t weight_bytes;
  Plan plan;
};

// Reads `stream.plan` of a folder: a line with the version, one with the name and the bytes of the weights, one with
// the bytes of the arena and the patience in ms, one with the number of tensors and their offsets, one with the number
// of loads, and one for each load with its six numbers and its layer. Throws for any other file.
PlanFile ReadPlan(const std::string& folder);

}  // namespace smartmem::stream
