// SPDX-License-Identifier: Apache-2.0
// Replaces TVM's function for the parallel loops of kernels: modules opened after this library find ours under its
// name.
#include <pthread.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include "pool.h"

// Exported by TVM's runtime; its wheel has no header for them.
namespace tvm::runtime::threading {
int NumThreads();
int MaxConcurrency();
}  // namespace tvm::runtime::threading

namespace smartmem::threads {
namespace {

// The calling thread runs a shorter loop alone: sharing it would take as long.
constexpr auto kWorthSharing = std::chrono::microseconds(10);

std::atomic<int> forks{0};         // forks between the process that opened the library and this one
std::atomic<int64_t> launched{0};  // loops
std::atomic<int64_t> alone{0};     // loops run by one thread

// Times of loops on one thread, by their functions; of two functions with the same hash only one is kept.
class Work {
 public:
  bool IsSmall(FTVMParallelLambda function) const {
    const Entry& entry = entries_[Place(function)];
    return entry.function == function && entry.time < kWorthSharing;
  }

  void Took(FTVMParallelLambda function, Clock::duration time) {
    Entry& entry = entries_[Place(function)];
    // Limited growth: a thread that was preempted measures a time slice too much, while a loop of a larger size really
    // takes longer and grows step by step.
    const bool known = entry.function == function;
    entry = {function, known ? std::min(time, 2 * entry.time + std::chrono::nanoseconds(100)) : time};
  }

 private:
  struct Entry {
    FTVMParallelLambda function = nullptr;
    Clock::duration time{};
  };

  static size_t Place(FTVMParallelLambda function) {
    return (reinterpret_cast<uintptr_t>(function) >> 4) * 0x9E3779B97F4A7C15u >> 54;
  }

  std::array<Entry, 1024> entries_{};
};

// State of a thread that runs kernels.
struct Mine {
  std::unique_ptr<Pool> pool;
  int forked = forks.load();
  bool running = false;  // detects nested loops
  Work work;

  ~Mine() { Leave(); }

  Pool& Of(int threads) {
    if (forked != forks.load() || !pool || pool->threads() != threads) {
      Leave();
      forked = forks.load();
      pool = std::make_unique<Pool>(threads);
    }
    return *pool;
  }

  void Leave() {
    if (pool && forked != forks.load()) {
      pool->Abandon();
      pool.release();  // leaked: a worker may have held its lock at the fork
    }
    pool.reset();
  }
};

thread_local Mine mine;

// Runs the loop on this thread alone, as one task if the kernel does not state a number of tasks.
int Alone(FTVMParallelLambda function, void* data, int tasks) {
  alone.fetch_add(1, std::memory_order_relaxed);
  TVMParallelGroupEnv env{nullptr, std::max(tasks, 1)};
  for (int task = 0; task < env.num_task; ++task) {
    if (int code = function(task, &env, data)) return code;
  }
  return 0;
}

int Launch(FTVMParallelLambda function, void* data, int tasks) {
  launched.fetch_add(1, std::memory_order_relaxed);
  if (Pool::IsWorker() || mine.running) return Alone(function, data, tasks);  // a nested loop
  const int threads = tvm::runtime::threading::MaxConcurrency() == 1 ? 1 : tvm::runtime::threading::NumThreads();
  const auto start = Clock::now();
  if (threads == 1 || tasks > threads || mine.work.IsSmall(function)) {
    const int code = Alone(function, data, tasks);
    mine.work.Took(function, Clock::now() - start);
    return code;
  }
  const Job job{function, data, {nullptr, tasks ? tasks : threads}};
  Clock::duration first{};
  mine.running = true;
  const std::string error = mine.Of(threads).Run(job, &first);
  mine.running = false;
  if (first.count() > 0) mine.work.Took(function, first * job.env.num_task);
  if (error.empty()) return 0;
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.c_str());
  return -1;
}

int Barrier(int, TVMParallelGroupEnv*) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError",
                               "A kernel waits for all threads within a parallel loop, which this pool does not have: "
                               "set SMARTMEM_THREADS=tvm for TVM's.");
  return -1;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  // Another copy of the library is already loaded.
  if (tvm::ffi::Function::GetGlobal("smartmem.threads.counts").has_value()) return;
  tvm::ffi::reflection::GlobalDef().def("smartmem.threads.counts", [] {
    return tvm::ffi::Array<int64_t>{launched.load(), alone.load(), Pool::Workers()};
  });
  pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  TVM_FFI_CHECK_SAFE_CALL(
      TVMFFIEnvModRegisterContextSymbol("__TVMBackendParallelLaunch", reinterpret_cast<void*>(Launch)));
  TVM_FFI_CHECK_SAFE_CALL(
      TVMFFIEnvModRegisterContextSymbol("__TVMBackendParallelBarrier", reinterpret_cast<void*>(Barrier)));
}

}  // namespace
}  // namespace smartmem::threads
