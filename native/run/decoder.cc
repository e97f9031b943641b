// SPDX-License-Identifier: Apache-2.0
#include "decoder.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "numbers.h"

namespace smartmem::run {
namespace {

constexpr const char* kLogits = "logits";

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

bool HasTokens(const std::vector<Ids>& lists) {
  return std::any_of(lists.begin(), lists.end(), [](const Ids& each) { return !each.empty(); });
}

int64_t Longest(const std::vector<Ids>& lists) {
  size_t longest = 0;
  for (const Ids& each : lists) longest = std::max(longest, each.size());
  return static_cast<int64_t>(longest);
}

void NeedTokens(int64_t tokens) {
  if (tokens < 1) TVM_FFI_THROW(ValueError) << tokens << " tokens are asked for: ask for at least one.";
}

Model* NeedCaches(Model* model) {
  if (!model->manifest().sizes.front().caches.empty()) return model;
  TVM_FFI_THROW(ValueError) << model->manifest().folder << " keeps no caches between inferences: compile the model "
                            << "with --cache.";
  __builtin_unreachable();
}

}  // namespace

Decoder::Decoder(Model* model)
    : model_(NeedCaches(model)),
      inputs_(model),
      state_(static_cast<size_t>(inputs_.sequences())),
      behind_(model, [this](const Step& step) { return Computed(step); }) {
  const std::vector<std::string>& outputs = model->manifest().sizes.front().outputs;
  logits_ = outputs.size() == 1 ? outputs[0] : kLogits;
  if (std::find(outputs.begin(), outputs.end(), logits_) == outputs.end()) {
    TVM_FFI_THROW(ValueError) << "the model has no output '" << kLogits << "': run it by its inputs.";
  }
}

int64_t Decoder::length() const {
  int64_t longest = 0;
  for (const Sequence& each : state_) longest = std::max(longest, each.length);
  return longest;
}

size_t Decoder::Checked(int64_t sequence) const {
  if (sequence >= 0 && sequence < sequences()) return static_cast<size_t>(sequence);
  TVM_FFI_THROW(ValueError) << "there is no sequence " << sequence << ": the model has " << sequences()
                            << ", counted from 0.";
  __builtin_unreachable();
}

std::string Decoder::WhyTogether() const {
  return "the model writes the rows of its " + std::to_string(sequences()) + " sequences at one place, as its caches "
         "or its inputs have one position for all, so that they are of one length: ";
}

void Decoder::NeedRoom(int64_t more, int64_t taken) const {
  if (more <= capacity() - taken) return;
  TVM_FFI_THROW(ValueError) << "the caches have " << capacity() << " rows, "
                            << (taken != 0 ? "and " + std::to_string(taken) + " are taken, " : "") << "and " << more
                            << " more do not fit: give fewer tokens, or compile the model with larger caches.";
}

void Decoder::Reset() {
  const Alone alone(&busy_);
  for (Sequence& each : state_) each.length = 0;
}

void Decoder::Reset(int64_t sequence) {
  const Alone alone(&busy_);
  Sequence& chosen = state_[Checked(sequence)];
  if (inputs_.together()) TVM_FFI_THROW(ValueError) << WhyTogether() << "reset all of them.";
  chosen.length = 0;
}

std::vector<float> Decoder::Feed(const std::vector<Ids>& lists) {
  const Alone alone(&busy_);
  Append(Lists(lists));
  std::vector<float> found;
  size_t width = 0;
  for (const Sequence& each : state_) width = std::max(width, each.scores.size());
  for (const Sequence& each : state_) {
    if (each.length != 0) {
      found.insert(found.end(), each.scores.begin(), each.scores.end());
    } else {
      found.insert(found.end(), width, std::numeric_limits<float>::quiet_NaN());
    }
  }
  return found;
}

Ids Decoder::Generate(const Ids& prompt, int64_t tokens) {
  const Alone alone(&busy_);
  NeedTokens(tokens);
  NeedRoom(static_cast<int64_t>(prompt.size()), 0);
  NeedRoom(tokens - 1, static_cast<int64_t>(prompt.size()));
  return Written(Lists({prompt}), 1, tokens)[0];
}

std::vector<Ids> Decoder::Generate(const std::vector<Ids>& prompts, int64_t tokens) {
  const Alone alone(&busy_);
  NeedTokens(tokens);
  std::vector<Ids> lists = Lists(prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) TVM_FFI_THROW(ValueError) << "prompt " << i << " has no tokens: give at least one id.";
    NeedRoom(static_cast<int64_t>(prompts[i].size()), 0);
  }
  return Written(std::move(lists), prompts.size(), tokens);
}

// Writes tokens behind the first `count` lists, at the beginning of new sequences.
std::vector<Ids> Decoder::Written(std::vector<Ids> lists, size_t count, int64_t tokens) {
  for (Sequence& each : state_) each.length = 0;
  std::vector<Ids> found(count);
  std::vector<bool> ended(count, false);
  while (true) {
    Append(lists);
    for (Ids& each : lists) each.clear();
    for (size_t i = 0; i < count; ++i) {
      if (ended[i]) continue;
      const std::vector<float>& scores = state_[i].scores;
      found[i].push_back(std::max_element(scores.begin(), scores.end()) - scores.begin());
      lists[i] = {found[i].back()};
    }
    for (size_t i = 0; i < count; ++i) {
      ended[i] = ended[i] || state_[i].length >= capacity() || static_cast<int64_t>(found[i].size()) == tokens;
      if (ended[i]) lists[i].clear();
    }
    if (std::find(ended.begin(), ended.end(), false) == ended.end()) return found;
  }
}

// Returns checked tokens of each sequence.
std::vector<Ids> Decoder::Lists(const std::vector<Ids>& given) const {
  if (static_cast<int64_t>(given.size()) > sequences()) {
    TVM_FFI_THROW(ValueError) << given.size() << " lists of tokens are given, and the model writes " << sequences()
                              << (sequences() == 1 ? " sequence" : " sequences") << " at once: give as many, or "
                              << "compile it for a larger batch.";
  }
  for (const Ids& each : given) {
    for (const int64_t id : each) {
      if (id < 0) TVM_FFI_THROW(ValueError) << id << " is no id of a token: ids are numbers from 0 up.";
    }
  }
  std::vector<Ids> lists = given;
  lists.resize(state_.size());
  return lists;
}

// Returns lists of one length, in which sequences without tokens get zeros.
std::vector<Ids> Decoder::Alike(std::vector<Ids> lists) const {
  const auto longest = static_cast<size_t>(Longest(lists));
  for (Ids& each : lists) {
    if (!each.empty() && each.size() != longest) TVM_FFI_THROW(ValueError) << WhyTogether() << "give each as many.";
    each.resize(longest, 0);
  }
  return lists;
}

void Decoder::Append(std::vector<Ids> lists) {
  if (!HasTokens(lists)) TVM_FFI_THROW(ValueError) << "there are no tokens: give at least one id.";
  if (inputs_.together()) lists = Alike(std::move(lists));
  for (size_t i = 0; i < lists.size(); ++i) NeedRoom(static_cast<int64_t>(lists[i].size()), state_[i].length);
  const std::vector<Sequence> before = state_;
  try {
    while (HasTokens(lists)) {
      const Step step = Next(lists);
      if (!Run(step)) continue;
      for (size_t i = 0; i < lists.size(); ++i) {
        state_[i].length += step.counts[i];
        lists[i].erase(lists[i].begin(), lists[i].begin() + step.counts[i]);
      }
    }
  } catch (...) {
    state_ = before;
    throw;
  }
}

std::vector<int64_t> Decoder::Candidates(int64_t most) const {
  const std::map<int64_t, size_t>& sizes = inputs_.sizes();
  std::vector<int64_t> found;
  const auto larger = sizes.lower_bound(most);
  if (larger != sizes.end()) found.push_back(larger->first);
  for (auto each = sizes.rbegin(); each != sizes.rend(); ++each) {
    if (each->first < most) found.push_back(each->first);
  }
  return found;
}

Step Decoder::Next(const std::vector<Ids>& lists) const {
  const int64_t room = capacity() - length(), most = Longest(lists);
  for (const int64_t size : Candidates(most)) {
    if (size > 1 && room < size) continue;
    const bool may_pad = all_scores_ && behind_.MayPad(inputs_.sizes().at(size));
    std::vector<int64_t> counts;
    for (const Ids& each : lists) {
      const auto left = static_cast<int64_t>(each.size());
      counts.push_back(may_pad || left >= size ? std::min(left, size) : 0);
    }
    if (*std::max_element(counts.begin(), counts.end()) > 0) return StepOf(lists, counts, size);
  }
  TVM_FFI_THROW(ValueError) << "the model takes at least " << inputs_.sizes().begin()->first << " tokens at a time, "
                            << "and " << most << " are left, for which the caches have no room to spare: compile it "
                            << "for 1 token as well.";
  __builtin_unreachable();
}

Step Decoder::StepOf(const std::vector<Ids>& lists, const std::vector<int64_t>& counts, int64_t size) const {
  Step step = {inputs_.sizes().at(size), size, Ids(lists.size() * static_cast<size_t>(size), 0), counts, {}};
  for (size_t i = 0; i < lists.size(); ++i) {
    const auto line = step.ids.begin() + static_cast<int64_t>(i) * size;
    std::copy_n(lists[i].begin(), counts[i], line);
    step.first.push_back(state_[i].length);
    if (counts[i] != 0 || state_[i].length != capacity()) continue;
    *line = state_[i].last;  // full: its last token once more
    --step.first.back();
  }
  return step;
}

// Runs a step and keeps the scores; returns whether it counts, or has to be repeated in another way.
bool Decoder::Run(const Step& step) {
  behind_.Prepare(step);
  const Scores scores = Computed(step);
  const bool known = scores.rows == step.size;
  if (behind_.Seen(step, scores)) return false;
  if (!known && step.padded()) {
    all_scores_ = false;  // rows of the padding are written over by the tokens' own
    return false;
  }
  for (size_t i = 0; i < state_.size(); ++i) {
    const int64_t count = step.counts[i];
    if (count == 0) continue;
    const auto line = static_cast<int64_t>(i) * scores.rows;
    const auto first = scores.numbers.begin() + (line + (known ? count : scores.rows) - 1) * scores.width;
    state_[i].scores.assign(first, first + scores.width);
    state_[i].last = step.ids[i * static_cast<size_t>(step.size) + static_cast<size_t>(count) - 1];
  }
  return true;
}

Scores Decoder::Computed(const Step& step) {
  model_->UseSize(step.function);
  inputs_.Give(step);
  model_->Run();
  const std::vector<std::string>& names = model_->manifest().sizes[step.function].outputs;
  const TensorInfo& output = model_->Output(std::find(names.begin(), names.end(), logits_) - names.begin());
  if (output.shape.empty() || output.shape.back() == 0 || !IsFloat(output.dtype)) {
    TVM_FFI_THROW(ValueError) << "output '" << logits_ << "' is of type " << output.dtype << ", and a decoder reads "
                              << "floats of 16 and 32 bits: run the model by its inputs.";
  }
  std::vector<char> data(output.bytes);
  model_->GetOutput(logits_, data.data(), data.size());
  const int64_t count = Count(output.shape), width = output.shape.back();
  Scores scores = {count / width / sequences(), width, std::vector<float>(static_cast<size_t>(count))};
  if (output.dtype == "float32") {
    std::memcpy(scores.numbers.data(), data.data(), data.size());
    return scores;
  }
  for (size_t i = 0; i < scores.numbers.size(); ++i) {
    scores.numbers[i] = static_cast<float>(NumberAt(output.dtype, data, i));
  }
  return scores;
}

}  // namespace smartmem::run
