// SPDX-License-Identifier: Apache-2.0
// Times of the events of an inference.
#pragma once

#include <tvm/ffi/container/array.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

namespace smartmem::stream {

using Clock = std::chrono::steady_clock;
inline constexpr Clock::time_point kNever = Clock::time_point::min();

struct LoadTimes {
  Clock::time_point begin = kNever, end = kNever;            // of the load
  Clock::time_point wait_begin = kNever, wait_end = kNever;  // of the layer, for the load
};

struct Record {
  Clock::time_point begin = kNever;
  std::vector<LoadTimes> loads;
  std::vector<Clock::time_point> done;  // by step

  void Clear(size_t load_count) {
    begin = kNever;
    loads.assign(load_count, LoadTimes());
    done.clear();
  }

  // Four numbers for each load, then one for each step: seconds since `begin`, NaN for events that did not happen.
  tvm::ffi::Array<double> Seconds() const {
    tvm::ffi::Array<double> all;
    all.reserve(static_cast<int64_t>(4 * loads.size() + done.size()));
    const auto add = [&](Clock::time_point time) {
      const bool never = time == kNever || begin == kNever;
      const std::chrono::duration<double> seconds = never ? Clock::duration(0) : time - begin;
      all.push_back(never ? std::numeric_limits<double>::quiet_NaN() : seconds.count());
    };
    for (const LoadTimes& load : loads) {
      for (const Clock::time_point time : {load.begin, load.end, load.wait_begin, load.wait_end}) add(time);
    }
    for (const Clock::time_point time : done) add(time);
    return all;
  }
};

}  // namespace smartmem::stream
