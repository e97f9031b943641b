// SPDX-License-Identifier: Apache-2.0
// A loop over items on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "environment.h"

namespace smartmem::opencl {

// The number of programs that are built at a time. NVIDIA's driver takes longer in total with 16 at
// a time than with 8.
inline size_t Jobs() {
  const auto threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 8);
  return static_cast<size_t>(WholeNumber("SMARTMEM_OPENCL_JOBS", threads));
}

// Calls work(0) ... work(count - 1) on up to `jobs` threads. After the first exception no new item
// is begun, and the exception is thrown when all threads have ended.
template <typename Work>
void ForEach(size_t count, size_t jobs, const Work& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      for (size_t item; (item = next++) < count;) work(item);
    } catch (...) {
      next = count;
      std::lock_guard<std::mutex> lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;  // no std::jthread, which Android's C++ library lacks
  helpers.reserve(std::min(count, jobs));
  try {
    while (helpers.size() + 1 < std::min(count, jobs)) helpers.emplace_back(run);
  } catch (const std::system_error&) {
    // The system has no more threads: the existing ones do the work.
  }
  run();  // this thread works too
  for (std::thread& each : helpers) each.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace smartmem::opencl
