// SPDX-License-Identifier: Apache-2.0
// The inputs of a language model by their roles, and their numbers for one run. Like `deploy/token_inputs.py`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model.h"

namespace smartmem::run {

// The tokens of one run.
struct Step {
  size_t function;                     // number of the model's size
  int64_t size;                        // tokens that each sequence gets, with its padding
  std::vector<int64_t> ids;            // sequences x size; zeros behind the tokens of a sequence
  std::vector<int64_t> counts, first;  // of each sequence: how many of them it has, and the row of the first one

  bool padded() const;  // whether a sequence has fewer tokens; one that has none does not count
};

class TokenInputs {
 public:
  explicit TokenInputs(Model* model);  // throws if an input is not known, or has a shape that a decoder does not give

  int64_t sequences() const { return sequences_; }
  int64_t capacity() const { return capacity_; }  // rows of the caches, of several the fewest
  // Whether all sequences must have as many tokens: rows of all are at one place, or an input has one number for all.
  bool together() const { return together_; }
  const std::map<int64_t, size_t>& sizes() const { return sizes_; }  // tokens of a sequence -> number of the size

  void Give(const Step& step) const;  // sets the inputs of the model

 private:
  std::string Role(const std::vector<std::string>& names) const;
  int64_t TokensOf(const SizeInfo& size);
  void CheckPositions(const TensorInfo& input, int64_t tokens);
  void CheckMask(const TensorInfo& input, int64_t tokens);
  bool IsForEach(int64_t numbers, int64_t tokens) const;
  double Number(const TensorInfo& input, const Step& step, int64_t place) const;

  Model* model_;
  std::string ids_, positions_, mask_;
  int64_t sequences_ = 0, capacity_ = 0;
  bool together_ = false;
  std::map<int64_t, size_t> sizes_;
};

}  // namespace smartmem::run
