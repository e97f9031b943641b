// SPDX-License-Identifier: Apache-2.0
#include "token_inputs.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <limits>

#include "numbers.h"

namespace smartmem::run {
namespace {

const std::vector<std::string> kIds = {"input_ids", "decoder_input_ids"};
const std::vector<std::string> kPositions = {"position_ids", "cache_position", "positions", "position"};
const std::vector<std::string> kMasks = {"attention_mask", "mask"};

[[noreturn]] void RefuseShape(const std::string& name) {
  TVM_FFI_THROW(ValueError) << "input '" << name << "' has a shape that a decoder does not give: it gives a position "
                            << "for each token, and masks of 1 x rows or 1 x 1 x tokens x rows, of several sequences "
                            << "as many lines.";
  __builtin_unreachable();
}

}  // namespace

bool Step::padded() const {
  return std::any_of(counts.begin(), counts.end(), [&](int64_t each) { return each > 0 && each < size; });
}

TokenInputs::TokenInputs(Model* model) : model_(model) {
  const Manifest& manifest = model->manifest();
  const SizeInfo& first = manifest.sizes.front();
  ids_ = Role(kIds), positions_ = Role(kPositions), mask_ = Role(kMasks);
  if (ids_.empty()) {
    TVM_FFI_THROW(ValueError) << "none of the model's inputs is called " << kIds[0] << ": run it by its inputs.";
  }
  for (const TensorInfo& each : first.inputs) {
    if (each.name == positions_ || each.name == mask_) continue;
    if (each.name == ids_) {
      sequences_ = each.shape.empty() || each.shape.back() < 1 ? 0 : Count(each.shape) / each.shape.back();
      continue;
    }
    TVM_FFI_THROW(ValueError) << "input '" << each.name << "' of the model is known neither as tokens, positions nor "
                              << "mask: set the inputs and run the model instead, or bind it to a value when it is "
                              << "compiled (--value).";
  }
  capacity_ = std::numeric_limits<int64_t>::max();
  for (const SizeInfo& size : manifest.sizes) {
    for (const CacheInfo& each : size.caches) {
      capacity_ = std::min(capacity_, each.tensor.shape[each.axis]);
      together_ |= sequences_ > 1 && each.sequences != sequences_;
    }
  }
  for (size_t number = manifest.sizes.size(); number-- > 0;) sizes_[TokensOf(manifest.sizes[number])] = number;
}

std::string TokenInputs::Role(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    for (const TensorInfo& each : model_->manifest().sizes.front().inputs) {
      if (each.name == name) return name;
    }
  }
  return "";
}

int64_t TokenInputs::TokensOf(const SizeInfo& size) {
  int64_t tokens = 0;
  for (const TensorInfo& each : size.inputs) {
    if (!IsKnown(each.dtype)) {
      TVM_FFI_THROW(ValueError) << "input '" << each.name << "' is of type " << each.dtype << ", and a decoder gives "
                                << "int64, int32, bool and floats: set the inputs and run the model instead.";
    }
    if (each.name != ids_) continue;
    tokens = each.shape.empty() ? 0 : each.shape.back();
    if (tokens >= 1 && Count(each.shape) == sequences_ * tokens) continue;
    TVM_FFI_THROW(ValueError) << "the model's sizes take different numbers of sequences, or no tokens: compile a model "
                              << "for each number of sequences.";
  }
  for (const TensorInfo& each : size.inputs) {
    if (each.name == positions_) CheckPositions(each, tokens);
    if (each.name == mask_) CheckMask(each, tokens);
  }
  return tokens;
}

void TokenInputs::CheckPositions(const TensorInfo& input, int64_t tokens) {
  const int64_t numbers = Count(input.shape);
  if (numbers != 1 && numbers != tokens && numbers != sequences_ && numbers != sequences_ * tokens) {
    RefuseShape(input.name);
  }
  if (sequences_ > 1) together_ |= !IsForEach(numbers, tokens);
}

void TokenInputs::CheckMask(const TensorInfo& input, int64_t tokens) {
  const std::vector<int64_t>& shape = input.shape;
  const bool rows = shape.size() == 2 && shape[1] == capacity_;
  const bool table = shape.size() == 4 && shape[1] == 1 && shape[2] == tokens && shape[3] == capacity_;
  if ((!rows && !table) || (shape[0] != 1 && shape[0] != sequences_)) RefuseShape(input.name);
  together_ |= shape[0] < sequences_;
}

// Whether an input has a position, or as many as tokens, for each sequence.
bool TokenInputs::IsForEach(int64_t numbers, int64_t tokens) const {
  const bool each = numbers == sequences_ || numbers == sequences_ * tokens;
  return each && !(together_ && (numbers == 1 || numbers == tokens));
}

void TokenInputs::Give(const Step& step) const {
  for (const TensorInfo& each : model_->inputs()) {
    std::vector<char> data(each.bytes);
    const int64_t count = Count(each.shape);
    for (int64_t i = 0; i < count; ++i) SetNumber(each.dtype, static_cast<size_t>(i), Number(each, step, i), &data);
    model_->SetInput(each.name, data.data(), data.size());
  }
}

double TokenInputs::Number(const TensorInfo& input, const Step& step, int64_t place) const {
  if (input.name == ids_) return static_cast<double>(step.ids[place]);
  if (input.name == positions_) {
    const int64_t numbers = Count(input.shape), lines = IsForEach(numbers, step.size) ? sequences_ : 1;
    const int64_t each = numbers / lines;  // of a line: a position for each token, or of the first one
    return static_cast<double>(step.first[place / each] + place % each);
  }
  const int64_t row = place % capacity_;
  if (input.shape.size() == 2) {  // the rows that are taken; a token that sees nothing has no softmax
    const int64_t line = place / capacity_;
    return row < step.first[line] + std::max<int64_t>(step.counts[line], 1) ? 1 : 0;
  }
  const int64_t token = place / capacity_ % step.size, line = place / capacity_ / step.size;
  const bool seen = row <= step.first[line] + token;
  if (!IsFloat(input.dtype)) return seen ? 1 : 0;
  return seen ? 0 : std::numeric_limits<float>::lowest();
}

}  // namespace smartmem::run
