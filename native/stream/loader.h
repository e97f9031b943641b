// SPDX-License-Identifier: Apache-2.0
// The weights of a model on their way from a file into an arena, by a plan, in a thread of its own beside those that
// compute (FlexNN, section 3.4).
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

// Any thread may call anything at any time. One mutex guards all of it. It is never held while something is read, so
// that whoever asks for weights that are there finds it free.
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

  // Rows of a table in the file, which has `count` of them from `offset` on, in the place of a load of all of it:
  // `out` gets one for each of `ids`.
  void Rows(int64_t offset, int64_t count, const tvm::ffi::Tensor& ids, const tvm::ffi::Tensor& out);

  tvm::ffi::Array<double> Timeline();
  int64_t LoadedBytes();

  // Whether this is a child forked from the process that opened the file: it has no loading thread, and whatever waits
  // for that, destructors too, would wait for ever.
  bool Forked() const;

 private:
  using Guard = std::unique_lock<std::mutex>;

  Guard Lock();  // throws if nothing can be done any more
  void NeedPlan() const;
  void NeedInference() const;
  void NeedNoInference() const;
  [[noreturn]] void ThrowImpatient(size_t load) const;

  // Waits, with the mutex let go, until nothing is being read; what is half loaded counts as not loaded.
  void Quiet(Guard& lock);
  void Restart();  // pinned loads stay
  void Forget();   // not even those
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
  bool running_ = false;    // an inference was begun and has not ended
  int64_t inference_ = 0;   // tells a thread that has waited whether it is in the same one
  int64_t done_ = -1;       // the last step that is
  std::vector<bool> loaded_;
  size_t next_ = 0;         // in the plan's order
  bool busy_ = false;       // a load is being read
  int holds_ = 0;           // threads that wait until none is
  std::string failure_;     // why nothing is loaded until the next inference; empty if something is
  int64_t loaded_bytes_ = 0;
  Clock::time_point last_byte_ = kNever;
  Record current_, last_;

  std::condition_variable may_load_;  // for the loading thread
  std::condition_variable arrived_;   // for all others
  std::thread thread_;                // last: it uses all of the above
};

}  // namespace smartmem::stream
