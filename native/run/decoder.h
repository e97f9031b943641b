// SPDX-License-Identifier: Apache-2.0
// A language model that keeps its caches: token ids in, scores of the next token out. Like `deploy/decoder.py`.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "model.h"

namespace smartmem::run {

class Decoder {
 public:
  explicit Decoder(Model* model);  // throws if the model keeps no caches, or has inputs that are not known

  int64_t capacity() const { return capacity_; }
  int64_t length() const { return length_; }

  void Reset();
  // Appends tokens; returns the scores of the next one. A second thread, and tokens that do not fit, throw before
  // anything is written.
  std::vector<float> Feed(const std::vector<int64_t>& ids);
  // Begins a sequence and returns the tokens with the largest scores that follow a prompt.
  std::vector<int64_t> Generate(const std::vector<int64_t>& prompt, int64_t tokens);

 private:
  struct Part {
    int64_t tokens, size;  // how many to run next, and by which size of the model
  };

  std::vector<float> Append(std::vector<int64_t> ids);
  Part Next(int64_t left) const;
  bool Run(const std::vector<int64_t>& ids, int64_t size, std::vector<float>* scores);
  void Give(const TensorInfo& input, const std::vector<int64_t>& ids, int64_t size);
  int64_t TokensOf(const SizeInfo& size) const;
  std::string Role(const std::vector<std::string>& names) const;
  void NeedRoom(int64_t more, int64_t taken) const;

  Model* model_;
  std::string ids_, positions_, mask_, logits_;
  std::map<int64_t, size_t> sizes_;  // tokens -> number of the size
  int64_t capacity_ = 0, length_ = 0;
  bool all_scores_ = true;  // whether a run gives scores for each token
  std::mutex busy_;
};

}  // namespace smartmem::run
