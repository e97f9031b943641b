// SPDX-License-Identifier: Apache-2.0
#include "pool.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <utility>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace smartmem::threads {
namespace {

// A worker spins for this long for the next loop before it sleeps: the kernels of an inference are closer together, and
// waking a thread takes the system 5 us and more. If other processes compete for its core, it spins for a shorter time:
// the scheduler charges the time of spinning, which the worker then lacks for work.
constexpr Clock::duration kLookingMost = std::chrono::microseconds(1000), kLookingLeast = std::chrono::microseconds(20);
constexpr auto kInterrupted = std::chrono::microseconds(100);  // a longer gap on the clock: another thread ran
// The calling thread spins for this long for the others: after it, one of them has probably been preempted.
constexpr auto kWaiting = std::chrono::microseconds(50);
constexpr int kLooks = 32;  // checks between two reads of the clock

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

// Spins until `done` holds, for at most `most`; returns whether it does. Sets `interrupted` if another thread ran on
// the core.
template <typename Condition>
bool Spin(Clock::duration most, Condition done, bool* interrupted) {
  auto now = Clock::now();
  const auto end = now + most;
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (done()) return true;
      Pause();
    }
    const auto before = std::exchange(now, Clock::now());
    *interrupted |= now - before > kInterrupted;
  } while (now < end);
  return false;
}

thread_local bool is_worker = false;
std::atomic<int> alive{0};

}  // namespace

int Pool::Workers() { return alive.load(); }

bool Pool::IsWorker() { return is_worker; }

Pool::Pool(int threads) : taken_(new Taken[threads]), most_(threads) {
  for (int number = 1; number < threads; ++number) {
    workers_.emplace_back([this, number] { Work(number); });
    alive.fetch_add(1);
  }
}

Pool::~Pool() {
  stop_.store(true);
  turn_.fetch_add(1);
  turn_.notify_all();
  for (std::thread& each : workers_) each.join();
  alive.fetch_sub(static_cast<int>(workers_.size()));
}

void Pool::Abandon() {
  for (std::thread& each : workers_) each.detach();
  alive.fetch_sub(static_cast<int>(workers_.size()));
}

std::string Pool::Run(const Job& job, Clock::duration* first) {
  const uint32_t turn = turn_.load(std::memory_order_relaxed) + 1;
  job_ = job;
  error_.clear();
  left_.store(job.env.num_task, std::memory_order_relaxed);
  // Mark the places beyond this loop's tasks as taken.
  for (int task = job.env.num_task; task < most_; ++task) {
    taken_[task].turn.store(turn, std::memory_order_relaxed);
  }
  turn_.store(turn);
  if (asleep_.load() > 0) turn_.notify_all();
  const auto start = Clock::now();
  if (Take(0, turn)) *first = Clock::now() - start;
  Tasks(1, most_ - 1, turn);
  Await();
  return error_;
}

// Takes tasks that no thread has begun, from `first` on: a thread's own task comes first, as its data is in its cache.
void Pool::Tasks(int first, int count, uint32_t turn) {
  for (int step = 0; step < count; ++step) {
    Take((first + step) % most_, turn);
  }
}

// Runs a task that no thread has begun. A late thread with an older turn finds a newer one and takes nothing.
bool Pool::Take(int task, uint32_t turn) {
  uint32_t before = turn - 1;
  if (taken_[task].turn.load(std::memory_order_relaxed) != before) return false;  // keeps the cache line shared
  if (!taken_[task].turn.compare_exchange_strong(before, turn, std::memory_order_acq_rel)) return false;
  Do(task);
  return true;
}

void Pool::Do(int task) {
  if (job_.function(task, &job_.env, job_.data) != 0) {
    tvm::ffi::Error error = tvm::ffi::details::MoveFromSafeCallRaised();
    std::lock_guard<std::mutex> lock(mutex_);
    error_ += "Task " + std::to_string(task) + " error: " + error.what();
  }
  if (left_.fetch_sub(1) == 1 && awaited_.load()) left_.notify_one();
}

void Pool::Await() {
  bool interrupted = false;
  if (Spin(kWaiting, [this] { return left_.load(std::memory_order_acquire) == 0; }, &interrupted)) return;
  awaited_.store(true);
  for (int left = left_.load(); left != 0; left = left_.load()) left_.wait(left);
  awaited_.store(false);
}

void Pool::Work(int number) {
  uint32_t seen = 0;
  is_worker = true;
  auto is_new = [this, &seen] { return turn_.load(std::memory_order_acquire) != seen; };
  Clock::duration looking = kLookingMost;
  while (true) {
    bool interrupted = false;
    const bool found = Spin(looking, is_new, &interrupted);
    looking = interrupted ? std::max(looking / 4, kLookingLeast) : std::min(looking * 2, kLookingMost);
    if (!found) {
      asleep_.fetch_add(1);
      while (!is_new()) turn_.wait(seen);
      asleep_.fetch_sub(1);
    }
    if (stop_.load()) return;
    seen = turn_.load(std::memory_order_acquire);
    Tasks(number, most_, seen);
  }
}

}  // namespace smartmem::threads
