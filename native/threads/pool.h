// SPDX-License-Identifier: Apache-2.0
// Threads that share the tasks of a parallel loop with the thread that runs the kernel.
//
// TVM's pool gives each worker a task of its own and waits until all have done theirs: one that the system has put to
// sleep, because other processes want its core, holds up the rest for a slice of time, milliseconds. Here whoever is
// awake takes what nobody has begun. Only a worker that is put to sleep within a task is waited for.
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

// A loop that is run in parts.
struct Job {
  FTVMParallelLambda function = nullptr;
  void* data = nullptr;
  TVMParallelGroupEnv env{};
};

// The workers of one thread. Only that thread calls `Run`.
class Pool {
 public:
  // `threads`: of a loop, the calling one among them.
  explicit Pool(int threads);
  ~Pool();

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Run all tasks of a loop; an empty string, or what went wrong. `first` is how long the first one took, unless a
  // worker has taken it.
  std::string Run(const Job& job, Clock::duration* first);

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Workers of all pools that there are.
  static int Workers();

  // Whether this thread is a worker of a pool.
  static bool IsWorker();

  // In the copy of a process there are no workers to be joined.
  void Abandon();

 private:
  void Work(int number);
  void Tasks(int first, int count, uint32_t turn);
  bool Take(int task, uint32_t turn);
  void Do(int task);
  void Await();

  // The turn in which each task was taken last, a cache line for each.
  struct alignas(64) Taken {
    std::atomic<uint32_t> turn{0};
  };

  Job job_;
  std::unique_ptr<Taken[]> taken_;
  int most_;
  alignas(64) std::atomic<uint32_t> turn_{0};  // of the newest loop
  alignas(64) std::atomic<int> left_{0};       // tasks that are not done
  std::atomic<int> asleep_{0};                 // workers that wait for a new turn in the system
  std::atomic<bool> awaited_{false};           // the calling thread waits for `left_` in the system
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::string error_;
  std::vector<std::thread> workers_;
};

}  // namespace smartmem::threads
