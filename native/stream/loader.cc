// SPDX-License-Identifier: Apache-2.0
#include "loader.h"

#include <pthread.h>
#include <signal.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace smartmem::stream {
namespace {

using tvm::ffi::Shape;
using tvm::ffi::Tensor;

// A load can be cancelled between pieces, so within the time of one piece.
constexpr int64_t kPiece = 4 << 20;

size_t Checked(int64_t index, size_t size, const char* what) {
  if (index >= 0 && index < static_cast<int64_t>(size)) return static_cast<size_t>(index);
  TVM_FFI_THROW(ValueError) << "there is no " << what << " " << index << " among the " << size
                            << " of the plan for streaming weights: use the plan of this model.";
  __builtin_unreachable();
}

// Leaves signals to the program's own threads.
void BlockSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Loader::Loader(const std::string& path, int64_t bytes) : owner_(getpid()), file_bytes_(bytes) {
  file_.emplace(path, bytes);
  thread_ = std::thread([this] { Run(); });
}

bool Loader::Forked() const { return getpid() != owner_; }

Loader::Guard Loader::Lock() {
  // Before locking: another thread may have held the mutex at the fork.
  if (Forked()) {
    TVM_FFI_THROW(RuntimeError) << "a stream of weights was opened before a fork, and its loading thread is not in "
                                   "this process: open the file in the process that uses it.";
  }
  Guard lock(mutex_);
  if (closed_) TVM_FFI_THROW(RuntimeError) << "a stream of weights was closed: open the file anew.";
  return lock;
}

void Loader::NeedPlan() const {
  if (plan_) return;
  TVM_FFI_THROW(RuntimeError) << "a stream of weights has no plan: call smartmem.stream.plan before.";
}

void Loader::NeedInference() const {
  if (running_) return;
  TVM_FFI_THROW(RuntimeError) << "a stream of weights is in no inference: call smartmem.stream.begin before.";
}

void Loader::NeedNoInference() const {
  if (!running_) return;
  TVM_FFI_THROW(RuntimeError) << "an inference is running on the old plan for streaming weights: call "
                                 "smartmem.stream.end before a new one is set.";
}

void Loader::SetPlan(Plan plan) {
  Guard lock = Lock();
  NeedNoInference();
  if (plan_) Quiet(lock);
  NeedNoInference();
  // The old arena is freed before the new one is allocated: there may not be memory for both.
  plan_.reset();
  tensor_views_.clear();
  weight_views_.clear();
  arena_.reset();
  arena_ = std::make_shared<Arena>(plan.arena_bytes);
  plan_.emplace(std::move(plan));
  tensor_views_.resize(plan_->offsets.size());
  weight_views_.resize(plan_->loads.size());
  last_ = Record();
  Forget();
}

void Loader::Begin() {
  Guard lock = Lock();
  NeedPlan();
  if (running_) {  // an error ended the last inference
    Quiet(lock);
    running_ = false;
    Restart();
  }
  std::string change = file_->Change();
  if (!change.empty() || !failure_.empty()) {
    // Data read from a changed file is invalid, and the time of the change is unknown.
    Quiet(lock);
    Forget();
  }
  if (!change.empty()) {
    failure_ = change;
    TVM_FFI_THROW(RuntimeError) << change;
  }
  running_ = true;
  ++inference_;
  current_.begin = Clock::now();
}

void Loader::Rows(int64_t offset, int64_t count, const tvm::ffi::Tensor& ids, const tvm::ffi::Tensor& out) {
  {
    Guard lock = Lock();
    NeedInference();
  }
  // Without the mutex: the file stays open until the stream is closed, which the computing thread does not do
  // meanwhile.
  const int64_t wanted = ids.numel();
  const auto bytes = static_cast<int64_t>(tvm::ffi::GetDataSize(out));
  if (wanted == 0) return;
  const int64_t row = bytes / wanted;
  const auto* places = static_cast<const int64_t*>(ids.data_ptr());
  auto* to = static_cast<char*>(out.data_ptr());
  for (int64_t i = 0; i < wanted; ++i) {
    if (places[i] < 0 || places[i] >= count) {
      TVM_FFI_THROW(ValueError) << "row " << places[i] << " of a table that has " << count
                                << " is read: pass indices from 0 to " << count - 1 << ".";
    }
    if (file_->ReadAll(to + i * row, row, offset + places[i] * row) < row) {
      TVM_FFI_THROW(RuntimeError) << "the weights " << file_->path() << " end, or cannot be read, within a table: "
                                  << "put back the file that was written with the model.";
    }
  }
  Guard lock = Lock();
  loaded_bytes_ += bytes;
}

void Loader::Done(int64_t step) {
  Guard lock = Lock();
  NeedInference();
  if (step <= done_ || step >= kMostSteps) {
    TVM_FFI_THROW(ValueError) << "step " << step << " is done after step " << done_ << " in a stream of weights, and "
                              << "steps count up from 0: tell of each once, in their order.";
  }
  done_ = step;
  current_.done.resize(static_cast<size_t>(step) + 1, kNever);
  current_.done.back() = Clock::now();
  if (MayLoad()) may_load_.notify_one();
}

void Loader::End() {
  Guard lock = Lock();
  NeedInference();
  Quiet(lock);
  NeedInference();
  running_ = false;
  std::swap(last_, current_);
  Restart();
}

void Loader::Close() {
  if (Forked()) return;
  std::thread thread;
  {
    Guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    thread.swap(thread_);
    may_load_.notify_all();
    arrived_.notify_all();
  }
  thread.join();
  Guard lock(mutex_);
  tensor_views_.clear();
  weight_views_.clear();
  arena_.reset();
  plan_.reset();
  file_.reset();
}

Tensor Loader::TensorOf(int64_t index, const Shape& shape, DLDataType dtype) {
  Guard lock = Lock();
  NeedPlan();
  const size_t tensor = Checked(index, plan_->offsets.size(), "tensor");
  const int64_t offset = plan_->offsets[tensor];
  return ViewOf(arena_, &tensor_views_[tensor], offset, plan_->arena_bytes - offset, shape, dtype);
}

Tensor Loader::WeightOf(int64_t index, const Shape& shape, DLDataType dtype) {
  Guard lock = Lock();
  NeedInference();
  const size_t load = Checked(index, plan_->loads.size(), "load");
  const Clock::time_point asked = Clock::now();
  const bool waits = !loaded_[load];
  if (waits) Await(lock, load);
  if (LoadTimes& times = current_.loads[load]; times.wait_begin == kNever) {
    times.wait_begin = asked;
    times.wait_end = waits ? Clock::now() : asked;
  }
  const Load& found = plan_->loads[load];
  return ViewOf(arena_, &weight_views_[load], found.arena_offset, found.bytes, shape, dtype);
}

void Loader::Await(Guard& lock, size_t load) {
  const int64_t inference = inference_;
  const Clock::time_point asked = Clock::now();
  while (!loaded_[load]) {
    if (!failure_.empty()) TVM_FFI_THROW(RuntimeError) << failure_;
    const Clock::time_point patient_until = std::max(asked, last_byte_) + plan_->patience;
    if (Clock::now() >= patient_until) ThrowImpatient(load);
    arrived_.wait_until(lock, patient_until);
    if (closed_ || inference_ != inference) {
      TVM_FFI_THROW(RuntimeError) << "a stream of weights was " << (closed_ ? "closed" : "begun anew or ended")
                                  << " while a layer waited for its weights: end an inference before.";
    }
  }
}

void Loader::ThrowImpatient(size_t load) const {
  const size_t next = plan_->order[next_];
  if (const Load& late = plan_->loads[next]; !busy_ && late.after > done_) {
    TVM_FFI_THROW(RuntimeError) << "layer '" << plan_->names[load] << "' has waited " << plan_->patience.count()
                                << " ms for its weights, and those of layer '" << plan_->names[next]
                                << "' are loaded after step " << late.after << ", which is not done (the last is "
                                << done_ << "): use a plan for these steps.";
  }
  TVM_FFI_THROW(RuntimeError) << "layer '" << plan_->names[load] << "' waits for its weights, and no byte of "
                              << file_->path() << " came in " << plan_->patience.count() << " ms, for layer '"
                              << plan_->names[next] << "': see whether the disk is well, or have more patience.";
  __builtin_unreachable();
}

void Loader::Quiet(Guard& lock) {
  ++holds_;
  const bool quiet = arrived_.wait_for(lock, plan_->patience, [this] { return !busy_; });
  --holds_;
  may_load_.notify_one();  // it continues when the caller releases the mutex
  if (closed_) TVM_FFI_THROW(RuntimeError) << "a stream of weights was closed in another thread: open the file anew.";
  NeedPlan();
  if (!quiet) ThrowImpatient(plan_->order[next_]);
}

void Loader::Restart() {
  ++inference_;
  done_ = -1;
  next_ = std::min(next_, plan_->pinned);
  for (size_t place = next_; place < plan_->order.size(); ++place) loaded_[plan_->order[place]] = false;
  current_.Clear(plan_->loads.size());
  may_load_.notify_one();
  arrived_.notify_all();
}

void Loader::Forget() {
  failure_.clear();
  next_ = 0;
  loaded_.assign(plan_->loads.size(), false);
  Restart();
}

void Loader::Run() {
  BlockSignals();
  Guard lock(mutex_);
  while (!closed_) {
    if (MayLoad()) {
      LoadNext(lock);
    } else {
      may_load_.wait(lock);
    }
  }
}

bool Loader::MayLoad() const {
  return plan_ && holds_ == 0 && failure_.empty() && next_ < plan_->order.size() &&
         plan_->loads[plan_->order[next_]].after <= done_;
}

void Loader::LoadNext(Guard& lock) {
  const size_t load = plan_->order[next_];
  const int64_t bytes = plan_->loads[load].bytes;
  busy_ = true;
  current_.loads[load].begin = Clock::now();
  int64_t have = 0, got = 0;
  while (have < bytes && LoadPiece(lock, load, have, &got)) have += got;
  busy_ = false;
  if (have == bytes) {
    current_.loads[load].end = Clock::now();
    loaded_[load] = true;
    ++next_;
  }
  arrived_.notify_all();
}

// Returns false if the load ends here: it failed or was cancelled.
bool Loader::LoadPiece(Guard& lock, size_t load, int64_t have, int64_t* got) {
  if (closed_ || holds_ > 0) return false;
  const Load& each = plan_->loads[load];
  lock.unlock();
  *got = file_->Read(arena_->data() + each.arena_offset + have, std::min(kPiece, each.bytes - have),
                     each.file_offset + have);
  const int error = *got < 0 ? errno : 0;
  lock.lock();
  if (*got > 0) {
    loaded_bytes_ += *got;
    last_byte_ = Clock::now();
    return true;
  }
  const std::string at = " at byte " + std::to_string(each.file_offset + have);
  failure_ = "the weights of layer '" + plan_->names[load] + "' cannot be read from " + file_->path() + at + " (" +
             (error == 0 ? "the file ends there: it was truncated" : std::generic_category().message(error)) +
             "): put the file back as it was, or see whether the disk is well.";
  return false;
}

tvm::ffi::Array<double> Loader::Timeline() {
  const Guard lock = Lock();
  return last_.Seconds();
}

int64_t Loader::LoadedBytes() {
  const Guard lock = Lock();
  return loaded_bytes_;
}

}  // namespace smartmem::stream
