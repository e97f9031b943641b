// SPDX-License-Identifier: Apache-2.0
// Threads that share the tasks of a parallel loop with the thread that runs the kernel.
//
// TVM's pool assigns one task to each worker and waits for all of them: a worker that is preempted, because another
// process runs on its core, delays the loop by a time slice of milliseconds. Here any running thread takes the tasks
// that no thread has begun, so that only a worker preempted within a task delays the loop.
#pragma once

#include <tvm/runtime/c_backend_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace smartmem::threads {

using Clock = std::chrono::steady_clock;

// A parallel loop.
struct Job {
  FTVMParallelLambda function = nullptr;
  void* data = nullptr;
  TVMParallelGroupEnv env{};
};

// The workers of one thread. Only that thread calls `Run`.
class Pool {
 public:
  // `threads`: threads of a loop, the calling one included.
  explicit Pool(int threads);
  ~Pool();

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Runs all tasks of a loop; returns an empty string or the errors. Sets `first` to the time of the first task, unless
  // a worker has taken it.
  std::string Run(const Job& job, Clock::duration* first);

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // The number of workers of all pools.
  static int Workers();

  // Whether this thread is a worker of a pool.
  static bool IsWorker();

  // For a forked process, which has no workers to join.
  void Abandon();

 private:
  void Work(int number);
  void Tasks(int first, int count, uint32_t turn);
  bool Take(int task, uint32_t turn);
  void Do(int task);
  void Await();

  // The turn in which each task was last taken, each in its own cache line.
  struct alignas(64) Taken {
    std::atomic<uint32_t> turn{0};
  };

  Job job_;
  std::unique_ptr<Taken[]> taken_;
  int most_;
  alignas(64) std::atomic<uint32_t> turn_{0};  // number of the newest loop
  alignas(64) std::atomic<int> left_{0};       // tasks that are not done
  std::atomic<int> asleep_{0};                 // workers that sleep until a new turn
  std::atomic<bool> awaited_{false};           // the calling thread sleeps until `left_` is 0
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::string error_;
  std::vector<std::thread> workers_;
};

}  // namespace smartmem::threads
