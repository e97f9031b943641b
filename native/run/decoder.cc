// SPDX-License-Identifier: Apache-2.0
#include "decoder.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace smartmem::run {
namespace {

const std::vector<std::string> kIds = {"input_ids", "decoder_input_ids"};
const std::vector<std::string> kPositions = {"position_ids", "cache_position", "positions", "position"};
const std::vector<std::string> kMasks = {"attention_mask", "mask"};
constexpr const char* kLogits = "logits";

int64_t Count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// Numbers of a tensor of any of the types that masks, ids and positions have.
class Numbers {
 public:
  explicit Numbers(const TensorInfo& input) : dtype_(input.dtype), data_(input.bytes) {
    if (dtype_ == "int64" || dtype_ == "int32" || dtype_ == "float32" || dtype_ == "bool") return;
    TVM_FFI_THROW(ValueError) << "input '" << input.name << "' is of type " << dtype_ << ", and a decoder gives int64, "
                              << "int32, float32 and bool: set the inputs and run the model instead.";
  }

  void Set(size_t place, double number) {
    if (dtype_ == "int64") Write(place, static_cast<int64_t>(number));
    if (dtype_ == "int32") Write(place, static_cast<int32_t>(number));
    if (dtype_ == "float32") Write(place, static_cast<float>(number));
    if (dtype_ == "bool") Write(place, static_cast<uint8_t>(number != 0));
  }

  bool floats() const { return dtype_ == "float32"; }
  const std::vector<char>& data() const { return data_; }

 private:
  template <typename T>
  void Write(size_t place, T number) {
    std::memcpy(data_.data() + place * sizeof number, &number, sizeof number);
  }

  std::string dtype_;
  std::vector<char> data_;
};

// Locks a decoder, or throws if another thread has it.
class Alone {
 public:
  explicit Alone(std::mutex* mutex) : lock_(*mutex, std::try_to_lock) {
    if (lock_) return;
    TVM_FFI_THROW(ValueError) << "this decoder is in use, and its caches hold one sequence: open the folder once for "
                              << "each thread.";
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

float FromHalf(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 31U, fraction = bits & 1023U;
  float found = exponent == 0    ? static_cast<float>(fraction) / (1 << 24)
                : exponent == 31 ? (fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                                                  : std::numeric_limits<float>::infinity())
                                 : 0.0F;
  uint32_t whole = ((exponent + 112) << 23) | (fraction << 13);
  if (exponent != 0 && exponent != 31) std::memcpy(&found, &whole, sizeof found);
  return sign != 0 ? -found : found;
}

}  // namespace

Decoder::Decoder(Model* model) : model_(model) {
  const Manifest& manifest = model->manifest();
  const SizeInfo& first = manifest.sizes.front();
  if (first.caches.empty()) {
    TVM_FFI_THROW(ValueError) << manifest.folder << " keeps no caches between inferences: compile the model with "
                              << "--cache.";
  }
  ids_ = Role(kIds), positions_ = Role(kPositions), mask_ = Role(kMasks);
  if (ids_.empty()) {
    TVM_FFI_THROW(ValueError) << "none of the model's inputs is called " << kIds[0] << ": run it by its inputs.";
  }
  for (const TensorInfo& each : first.inputs) {
    if (each.name == ids_ || each.name == positions_ || each.name == mask_) continue;
    TVM_FFI_THROW(ValueError) << "input '" << each.name << "' of the model is known neither as tokens, positions nor "
                              << "mask: set the inputs and run the model instead, or bind it to a value when it is "
                              << "compiled (--value).";
  }
  const std::vector<std::string>& outputs = first.outputs;
  logits_ = outputs.size() == 1 ? outputs[0] : kLogits;
  if (std::find(outputs.begin(), outputs.end(), logits_) == outputs.end()) {
    TVM_FFI_THROW(ValueError) << "the model has no output '" << kLogits << "': run it by its inputs.";
  }
  capacity_ = std::numeric_limits<int64_t>::max();
  for (const CacheInfo& each : first.caches) capacity_ = std::min(capacity_, each.tensor.shape[each.axis]);
  for (size_t number = manifest.sizes.size(); number-- > 0;) sizes_[TokensOf(manifest.sizes[number])] = number;
}

std::string Decoder::Role(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    for (const TensorInfo& each : model_->manifest().sizes.front().inputs) {
      if (each.name == name) return name;
    }
  }
  return "";
}

int64_t Decoder::TokensOf(const SizeInfo& size) const {
  int64_t tokens = 0;
  for (const TensorInfo& each : size.inputs) {
    if (each.name != ids_) continue;
    tokens = each.shape.empty() ? 0 : each.shape.back();
    if (tokens < 1 || Count(each.shape) != tokens) {
      TVM_FFI_THROW(ValueError) << "the model takes several sequences, and a decoder writes one: compile it for a batch "
                                << "of 1, or run it by its inputs.";
    }
  }
  for (const TensorInfo& each : size.inputs) {
    const int64_t count = Count(each.shape);
    const bool places = each.name == positions_ && (count == 1 || count == tokens);
    const bool rows = each.shape.size() == 2 && each.shape[0] == 1 && each.shape[1] == capacity_;
    const bool both = each.shape == std::vector<int64_t>{1, 1, tokens, capacity_};
    if (each.name == ids_ || places || (each.name == mask_ && (rows || both))) continue;
    TVM_FFI_THROW(ValueError) << "input '" << each.name << "' has a shape that a decoder does not give: it gives a "
                              << "position for each token, and masks of 1 x rows or 1 x 1 x tokens x rows.";
  }
  return tokens;
}

void Decoder::NeedRoom(int64_t more, int64_t taken) const {
  if (more <= capacity_ - taken) return;
  TVM_FFI_THROW(ValueError) << "the caches have " << capacity_ << " rows, "
                            << (taken != 0 ? "and " + std::to_string(taken) + " are taken, " : "") << "and " << more
                            << " more do not fit: give fewer tokens, or compile the model with larger caches.";
}

void Decoder::Reset() {
  const Alone alone(&busy_);
  length_ = 0;
}

std::vector<float> Decoder::Feed(const std::vector<int64_t>& ids) {
  const Alone alone(&busy_);
  return Append(ids);
}

std::vector<int64_t> Decoder::Generate(const std::vector<int64_t>& prompt, int64_t tokens) {
  const Alone alone(&busy_);
  if (tokens < 1) TVM_FFI_THROW(ValueError) << tokens << " tokens are asked for: ask for at least one.";
  NeedRoom(static_cast<int64_t>(prompt.size()), 0);
  NeedRoom(tokens - 1, static_cast<int64_t>(prompt.size()));
  length_ = 0;
  std::vector<float> scores = Append(prompt);
  std::vector<int64_t> found;
  while (true) {
    found.push_back(std::max_element(scores.begin(), scores.end()) - scores.begin());
    if (static_cast<int64_t>(found.size()) == tokens) return found;
    scores = Append({found.back()});
  }
}

std::vector<float> Decoder::Append(std::vector<int64_t> ids) {
  if (ids.empty()) TVM_FFI_THROW(ValueError) << "there are no tokens: give at least one id.";
  for (const int64_t id : ids) {
    if (id < 0) TVM_FFI_THROW(ValueError) << id << " is no id of a token: ids are numbers from 0 up.";
  }
  NeedRoom(static_cast<int64_t>(ids.size()), length_);
  const int64_t before = length_;
  std::vector<float> scores;
  try {
    while (!ids.empty()) {
      const Part part = Next(static_cast<int64_t>(ids.size()));
      const std::vector<int64_t> now(ids.begin(), ids.begin() + part.tokens);
      if (!Run(now, part.size, &scores)) continue;
      length_ += part.tokens;
      ids.erase(ids.begin(), ids.begin() + part.tokens);
    }
  } catch (...) {
    length_ = before;
    throw;
  }
  return scores;
}

Decoder::Part Decoder::Next(int64_t left) const {
  const auto larger = sizes_.lower_bound(left);
  if (larger != sizes_.end() && length_ + larger->first <= capacity_ && (larger->first == left || all_scores_)) {
    return {left, larger->first};
  }
  const auto after = sizes_.upper_bound(left);
  if (after != sizes_.begin()) return {std::prev(after)->first, std::prev(after)->first};
  TVM_FFI_THROW(ValueError) << "the model takes at least " << sizes_.begin()->first << " tokens at a time, and " << left
                            << " are left, for which the caches have no room to spare: compile it for 1 token as well.";
  __builtin_unreachable();
}

// Returns whether the scores after the last token are known: of padded tokens they may be known for the last one only.
bool Decoder::Run(const std::vector<int64_t>& ids, int64_t size, std::vector<float>* scores) {
  model_->UseSize(sizes_.at(size));
  for (const TensorInfo& each : model_->inputs()) Give(each, ids, size);
  model_->Run();
  const std::vector<std::string>& names = model_->manifest().sizes[sizes_.at(size)].outputs;
  const size_t place = std::find(names.begin(), names.end(), logits_) - names.begin();
  const TensorInfo& output = model_->Output(place);
  if (output.shape.empty() || (output.dtype != "float32" && output.dtype != "float16")) {
    TVM_FFI_THROW(ValueError) << "output '" << logits_ << "' is of type " << output.dtype << ", and a decoder reads "
                              << "float32 and float16: run the model by its inputs.";
  }
  const int64_t width = output.shape.back(), rows = width != 0 ? Count(output.shape) / width : 0;
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens < size && rows != size) {
    all_scores_ = false;  // rows of the padding are written over by the tokens' own
    return false;
  }
  std::vector<char> data(output.bytes);
  model_->GetOutput(logits_, data.data(), data.size());
  const int64_t row = rows == size ? tokens - 1 : rows - 1;
  scores->resize(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    const int64_t at = row * width + i;
    if (output.dtype == "float32") {
      std::memcpy(&(*scores)[i], data.data() + at * 4, 4);
    } else {
      uint16_t half;
      std::memcpy(&half, data.data() + at * 2, 2);
      (*scores)[i] = FromHalf(half);
    }
  }
  return true;
}

void Decoder::Give(const TensorInfo& input, const std::vector<int64_t>& ids, int64_t size) {
  Numbers numbers(input);
  const int64_t count = Count(input.shape), tokens = static_cast<int64_t>(ids.size());
  for (int64_t i = 0; i < count; ++i) {
    double number = 0;
    if (input.name == ids_) {
      number = i < tokens ? static_cast<double>(ids[i]) : 0;
    } else if (input.name == positions_) {
      number = static_cast<double>(length_ + i);
    } else if (input.shape.size() == 2) {  // the rows that are taken
      number = i < length_ + tokens;
    } else {
      const bool seen = i % capacity_ <= length_ + i / capacity_;
      number = !numbers.floats() ? seen : seen ? 0 : std::numeric_limits<float>::lowest();
    }
    numbers.Set(static_cast<size_t>(i), number);
  }
  model_->SetInput(input.name, numbers.data().data(), numbers.data().size());
}

}  // namespace smartmem::run
