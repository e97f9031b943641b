// SPDX-License-Identifier: Apache-2.0
#include "hidden_rows.h"

#include <algorithm>
#include <cmath>

#include "numbers.h"

namespace smartmem::run {
namespace {

constexpr double kNear = 1e-4;  // as in Python: what two runs may differ by, relative to the largest number. Assumed.

bool Near(const std::vector<double>& one, const std::vector<double>& other) {
  double most = 0;
  for (const double each : one) most = std::max(most, std::isnan(each) ? 0 : std::fabs(each));
  for (size_t i = 0; i < one.size(); ++i) {
    const bool same = std::fabs(one[i] - other[i]) <= kNear * most;
    if (!same && one[i] != other[i] && !(std::isnan(one[i]) && std::isnan(other[i]))) return false;
  }
  return true;
}

// Calls `each(place, numbers, sequence, row)` for the numbers of each row of a cache; of one that all sequences share
// with the number of sequences.
template <typename Each>
void ForRows(const CacheInfo& cache, size_t sequences, const Each& each) {
  const std::vector<int64_t>& shape = cache.tensor.shape;
  const int64_t rows = shape[cache.axis], total = Count(shape);
  int64_t inner = 1;
  for (size_t i = cache.axis + 1; i < shape.size(); ++i) inner *= shape[i];
  const bool apart = cache.axis > 0 && shape[0] == static_cast<int64_t>(sequences);
  for (int64_t at = 0; at < total; at += inner) {
    const size_t sequence = apart ? static_cast<size_t>(at / (total / shape[0])) : sequences;
    each(static_cast<size_t>(at), static_cast<size_t>(inner), sequence, at / inner % rows);
  }
}

// The place of a sequence among places of all; of a cache that all share the last one.
int64_t Of(const std::vector<int64_t>& places, size_t sequence) {
  return sequence < places.size() ? places[sequence] : *std::max_element(places.begin(), places.end());
}

size_t BytesOfNumber(const TensorInfo& tensor) { return tensor.bytes / static_cast<size_t>(Count(tensor.shape)); }

}  // namespace

bool HiddenRows::Hides(size_t function, bool padded) const {
  const auto found = hides_.find({function, padded});
  return found == hides_.end() || found->second;
}

bool HiddenRows::MayPad(size_t function) const {
  return hides_.count({function, true}) != 0 ? Hides(function, true) : Hides(function, false);
}

void HiddenRows::Prepare(const Step& step) {
  used_.resize(step.first.size(), 0);
  if (Hides(step.function, false)) return;
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i] > step.first[i]) return Clear(step);
  }
}

bool HiddenRows::Seen(const Step& step, const Scores& scores) {
  bool behind = step.padded();
  for (size_t i = 0; i < used_.size(); ++i) {
    const int64_t end = step.first[i] + step.size;
    behind |= used_[i] > end;
    used_[i] = std::max(used_[i], end);
  }
  if (!behind || hides_.count({step.function, step.padded()}) != 0) return false;
  if (step.padded() && scores.rows != step.size) return false;  // the run is repeated without padding
  const bool hides = IsSameWithNoise(step, scores);
  hides_[{step.function, step.padded()}] = hides;
  if (!hides) Clear(step);
  return !hides;
}

void HiddenRows::Clear(const Step& step) {
  Fill(step.first, false);
  used_ = step.first;
}

bool HiddenRows::IsSameWithNoise(const Step& step, const Scores& scores) {
  std::vector<int64_t> ends = step.first;
  Step other = step;
  for (size_t i = 0; i < ends.size(); ++i) {
    ends[i] += step.counts[i];
    const auto line = other.ids.begin() + static_cast<int64_t>(i) * step.size;
    std::fill(line + step.counts[i], line + step.size, 1);
  }
  const Rows before = Read(step);
  Fill(ends, true);
  const Scores found = run_(other);
  const Rows after = Read(step);
  PutBack(step, before);
  for (const CacheInfo& each : Caches()) {  // the other numbers are still behind the tokens
    for (int64_t& used : used_) used = std::max(used, each.tensor.shape[each.axis]);
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    if (step.counts[i] == 0) continue;
    const auto at = static_cast<int64_t>(i) * scores.rows * scores.width;
    const int64_t rows = step.padded() ? step.counts[i] : scores.rows;
    const auto of = [&](const Scores& each) {
      return std::vector<double>(each.numbers.begin() + at, each.numbers.begin() + at + rows * scores.width);
    };
    if (!Near(of(scores), of(found))) return false;
  }
  return RowsAreSame(step, before, after);
}

bool HiddenRows::RowsAreSame(const Step& step, const Rows& before, const Rows& after) const {
  for (size_t number = 0; number < Caches().size(); ++number) {
    const CacheInfo& cache = Caches()[number];
    if (!IsKnown(cache.tensor.dtype)) continue;
    std::vector<double> one, other;
    size_t at = 0;  // among the numbers of the step's rows
    ForRows(cache, step.first.size(), [&](size_t, size_t count, size_t sequence, int64_t row) {
      const int64_t first = Of(step.first, sequence);
      if (row < first || row >= first + step.size) return;
      for (size_t i = 0; i < count && row < first + Of(step.counts, sequence); ++i) {
        one.push_back(NumberAt(cache.tensor.dtype, before[number], at + i));
        other.push_back(NumberAt(cache.tensor.dtype, after[number], at + i));
      }
      at += count;
    });
    if (!Near(one, other)) return false;
  }
  return true;
}

HiddenRows::Rows HiddenRows::Read(const Step& step) const {
  Rows found;
  for (const CacheInfo& cache : Caches()) {
    std::vector<char> whole(cache.tensor.bytes), rows;
    model_->GetCache(cache.tensor.name, whole.data());
    const size_t bytes = BytesOfNumber(cache.tensor);
    ForRows(cache, step.first.size(), [&](size_t place, size_t count, size_t sequence, int64_t row) {
      const int64_t first = Of(step.first, sequence);
      if (row < first || row >= first + step.size) return;
      const auto from = whole.begin() + static_cast<ptrdiff_t>(place * bytes);
      rows.insert(rows.end(), from, from + static_cast<ptrdiff_t>(count * bytes));
    });
    found.push_back(std::move(rows));
  }
  return found;
}

void HiddenRows::PutBack(const Step& step, const Rows& rows) {
  for (size_t number = 0; number < rows.size(); ++number) {
    const CacheInfo& cache = Caches()[number];
    std::vector<char> whole(cache.tensor.bytes);
    model_->GetCache(cache.tensor.name, whole.data());
    const size_t bytes = BytesOfNumber(cache.tensor);
    auto kept = rows[number].begin();
    ForRows(cache, step.first.size(), [&](size_t place, size_t count, size_t sequence, int64_t row) {
      const int64_t first = Of(step.first, sequence);
      if (row < first || row >= first + step.size) return;
      std::copy_n(kept, count * bytes, whole.begin() + static_cast<ptrdiff_t>(place * bytes));
      kept += static_cast<ptrdiff_t>(count * bytes);
    });
    model_->PutCache(cache.tensor.name, whole.data());
  }
}

void HiddenRows::Fill(const std::vector<int64_t>& ends, bool noise) {
  std::normal_distribution<double> normal;
  for (const CacheInfo& cache : Caches()) {
    if (!IsKnown(cache.tensor.dtype)) continue;
    std::vector<char> whole(cache.tensor.bytes);
    model_->GetCache(cache.tensor.name, whole.data());
    ForRows(cache, ends.size(), [&](size_t place, size_t count, size_t sequence, int64_t row) {
      if (row < Of(ends, sequence)) return;
      for (size_t i = 0; i < count; ++i) {
        SetNumber(cache.tensor.dtype, place + i, noise ? normal(random_) : 0, &whole);
      }
    });
    model_->PutCache(cache.tensor.name, whole.data());
  }
}

}  // namespace smartmem::run
