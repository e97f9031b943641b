// SPDX-License-Identifier: Apache-2.0
// Loads the weights of a model from a file into an arena, by a plan, in a thread beside those that compute (FlexNN,
// section 3.4).
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "arena.h"
#include "plan.h"
#include "record.h"
#include "weight_file.h"

namespace smartmem::stream {

// All functions are thread-safe; one mutex guards the state. It is never held during a read, so a request for loaded
// weights never waits for one.
class Loader {
 public:
  Loader(const std::string& path, int64_t bytes);
  ~Loader() { Close(); }

  int64_t file_bytes() const { return file_bytes_; }

  void SetPlan(Plan plan);
  void Begin();
  void Done(int64_t step);
  void End();
  void Close();

  tvm::ffi::Tensor TensorOf(int64_t index, const tvm::ffi::Shape& shape, DLDataType dtype);
  tvm::ffi::Tensor WeightOf(int64_t load, const tvm::ffi::Shape& shape, DLDataType dtype);

  // Reads rows of a table in the file, which has `count` of them from `offset` on, instead of loading it whole: `out`
  // gets one row for each of `ids`.
  void Rows(int64_t offset, int64_t count, const tvm::ffi::Tensor& ids, const tvm::ffi::Tensor& out);

  tvm::ffi::Array<double> Timeline();
  int64_t LoadedBytes();

  // Whether this process was forked from the one that opened the file: it has no loading thread, and any wait for that
  // thread, in destructors too, would never end.
  bool Forked() const;

 private:
  using Guard = std::unique_lock<std::mutex>;

  Guard Lock();  // throws if the loader is closed or forked
  void NeedPlan() const;
  void NeedInference() const;
  void NeedNoInference() const;
  [[noreturn]] void ThrowImpatient(size_t load) const;

  // Waits, with the mutex released, until no read is running; a partial load counts as not loaded.
  void Quiet(Guard& lock);
  void Restart();  // pinned loads stay
  void Forget();   // drops pinned loads, too
  void Await(Guard& lock, size_t load);

  // In the loading thread.
  void Run();
  bool MayLoad() const;
  void LoadNext(Guard& lock);
  bool LoadPiece(Guard& lock, size_t load, int64_t have, int64_t* got);

  const pid_t owner_;
  const int64_t file_bytes_;

  std::mutex mutex_;  // guards what follows
  std::optional<WeightFile> file_;
  std::optional<Plan> plan_;  // while `busy_`, the loading thread reads these three without the mutex
  std::shared_ptr<Arena> arena_;
  std::vector<std::vector<tvm::ffi::Tensor>> tensor_views_, weight_views_;

  bool closed_ = false;
  bool running_ = false;    // an inference has begun and not ended
  int64_t inference_ = 0;   // lets a waiting thread detect that another inference has begun
  int64_t done_ = -1;       // the last completed step
  std::vector<bool> loaded_;
  size_t next_ = 0;         // in the plan's order
  bool busy_ = false;       // a load is being read
  int holds_ = 0;           // threads that wait until no load is being read
  std::string failure_;     // why loading has stopped until the next inference; empty if it has not
  int64_t loaded_bytes_ = 0;
  Clock::time_point last_byte_ = kNever;
  Record current_, last_;

  std::condition_variable may_load_;  // for the loading thread
  std::condition_variable arrived_;   // for all others
  std::thread thread_;                // last: it uses all of the above
};

}  // namespace smartmem::stream
