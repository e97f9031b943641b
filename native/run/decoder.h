// SPDX-License-Identifier: Apache-2.0
// A language model that keeps its caches: token ids in, scores of the next tokens out. Like `deploy/decoder.py`.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "hidden_rows.h"
#include "model.h"
#include "token_inputs.h"

namespace smartmem::run {

using Ids = std::vector<int64_t>;

// What is known of a sequence.
struct Sequence {
  int64_t length = 0, last = 0;  // tokens whose rows are in the caches, and the last of them
  std::vector<float> scores;     // after it; empty if there is none
};

// A second thread, and tokens that do not fit, throw before anything is written.
class Decoder {
 public:
  explicit Decoder(Model* model);  // throws if the model keeps no caches, or has inputs that are not known

  int64_t capacity() const { return inputs_.capacity(); }
  int64_t sequences() const { return inputs_.sequences(); }
  int64_t length() const;  // of the longest sequence
  int64_t length(int64_t sequence) const { return state_[Checked(sequence)].length; }

  void Reset();
  void Reset(int64_t sequence);
  // Appends tokens to each sequence, or to the first ones; returns the scores of the next one of each, one sequence
  // behind the other, NaN for one without tokens.
  std::vector<float> Feed(const std::vector<Ids>& lists);
  // Begins a sequence and returns the tokens with the largest scores that follow a prompt.
  Ids Generate(const Ids& prompt, int64_t tokens);
  // The same of several prompts; a sequence whose caches are full ends before.
  std::vector<Ids> Generate(const std::vector<Ids>& prompts, int64_t tokens);

 private:
  std::vector<Ids> Lists(const std::vector<Ids>& given) const;
  std::vector<Ids> Alike(std::vector<Ids> lists) const;
  std::vector<Ids> Written(std::vector<Ids> lists, size_t count, int64_t tokens);
  void Append(std::vector<Ids> lists);
  Step Next(const std::vector<Ids>& lists) const;
  std::vector<int64_t> Candidates(int64_t most) const;  // sizes, the preferred ones first
  Step StepOf(const std::vector<Ids>& lists, const std::vector<int64_t>& counts, int64_t size) const;
  bool Run(const Step& step);
  Scores Computed(const Step& step);
  void NeedRoom(int64_t more, int64_t taken) const;
  size_t Checked(int64_t sequence) const;
  std::string WhyTogether() const;

  Model* model_;
  TokenInputs inputs_;
  std::string logits_;
  std::vector<Sequence> state_;
  bool all_scores_ = true;  // whether a run gives scores for each token
  HiddenRows behind_;
  std::mutex busy_;
};

}  // namespace smartmem::run
