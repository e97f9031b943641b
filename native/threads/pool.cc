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

// A worker looks for the next loop so long before it sleeps: kernels of one inference are less far apart, and to wake it
// takes the system 5 us and more. Where other processes want its core it looks for a shorter time: what it spends on
// looking, it lacks when there is work.
constexpr Clock::duration kLookingMost = std::chrono::microseconds(1000), kLookingLeast = std::chrono::microseconds(20);
constexpr auto kInterrupted = std::chrono::microseconds(100);  // between two looks: something else has run
// The calling thread looks so long whether the others are done: beyond that one of them sleeps.
constexpr auto kWaiting = std::chrono::microseconds(50);
constexpr int kLooks = 32;  // between two looks at the clock

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

// Look again and again, for so long at most; whether it came true. `interrupted`: something else ran meanwhile.
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
  // What is no task of this loop is taken.
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

// Those of so many tasks that nobody has begun, a thread's own first: what it touched before is in its cache.
void Pool::Tasks(int first, int count, uint32_t turn) {
  for (int step = 0; step < count; ++step) {
    Take((first + step) % most_, turn);
  }
}

// Do a task that nobody has begun. Whoever comes late, with an older turn, finds a newer one and takes nothing.
bool Pool::Take(int task, uint32_t turn) {
  uint32_t before = turn - 1;
  if (taken_[task].turn.load(std::memory_order_relaxed) != before) return false;  // leaves its line of cache where it is
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
