// SPDX-License-Identifier: Apache-2.0
// Whether a model hides the rows of its caches behind a token, so that padding and old rows may lie there. Like
// `deploy/hidden_rows.py`, which says how it is tested.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "model.h"
#include "token_inputs.h"

namespace smartmem::run {

struct Scores {
  int64_t rows, width;         // of each sequence: of all tokens, or of the last one
  std::vector<float> numbers;  // sequences x rows x width
};

class HiddenRows {
 public:
  HiddenRows(Model* model, std::function<Scores(const Step&)> run) : model_(model), run_(std::move(run)) {}

  bool MayPad(size_t function) const;  // as far as is known
  void Prepare(const Step& step);      // clears rows before a run of a function that sees them
  // Whether what a run gave depends on what is behind the tokens; then rows behind those before it are cleared.
  bool Seen(const Step& step, const Scores& scores);

 private:
  using Rows = std::vector<std::vector<char>>;  // of each cache

  bool Hides(size_t function, bool padded) const;  // true if not known
  void Clear(const Step& step);
  bool IsSameWithNoise(const Step& step, const Scores& scores);
  bool RowsAreSame(const Step& step, const Rows& before, const Rows& after) const;
  const std::vector<CacheInfo>& Caches() const { return model_->manifest().sizes.front().caches; }
  Rows Read(const Step& step) const;  // the rows that the step writes, with its padding
  void PutBack(const Step& step, const Rows& rows);
  // Writes zeros or random numbers into all rows behind sequences.
  void Fill(const std::vector<int64_t>& ends, bool noise);

  Model* model_;
  std::function<Scores(const Step&)> run_;
  std::map<std::pair<size_t, bool>, bool> hides_;  // number of a size, and whether tokens are padded
  std::vector<int64_t> used_;                       // of each sequence, the rows written since they were zeros
  std::minstd_rand random_;
};

}  // namespace smartmem::run
