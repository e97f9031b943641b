// SPDX-License-Identifier: Apache-2.0
// Statistics of a series of times.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

namespace smartmem::run {

struct Latency {
  double min, p50, p90, p99, max, mean;
};

// Interpolates between the two nearest values, like numpy.percentile; `sorted` has at least one.
inline double Percentile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(place), high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (place - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

inline Latency Summed(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  return {times.front(), Percentile(times, 0.5), Percentile(times, 0.9), Percentile(times, 0.99), times.back(),
          sum / static_cast<double>(times.size())};
}

}  // namespace smartmem::run
