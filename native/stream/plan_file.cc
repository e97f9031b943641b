// SPDX-License-Identifier: Apache-2.0
#include "plan_file.h"

#include <tvm/ffi/error.h>

#include <fstream>
#include <utility>

namespace smartmem::stream {
namespace {

constexpr const char* kName = "stream.plan";
constexpr int64_t kMost = 1 << 24;  // offsets and loads: a wrong file must not allocate all memory

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {
    if (!file_) {
      TVM_FFI_THROW(RuntimeError) << path << " cannot be opened: give the folder of a model that was compiled with a "
                                  << "memory budget.";
    }
  }

  std::string Word() {
    std::string word;
    if (!(file_ >> word)) Refuse();
    return word;
  }

  void Expect(const std::string& word) {
    if (Word() != word) Refuse();
  }

  int64_t Number() {
    int64_t number = 0;
    if (!(file_ >> number)) Refuse();
    return number;
  }

  int64_t Count() {
    const int64_t count = Number();
    if (count < 0 || count > kMost) Refuse();
    return count;
  }

  [[noreturn]] void Refuse() {
    TVM_FFI_THROW(RuntimeError) << path_ << " is not as it was written: compile the model again.";
    __builtin_unreachable();
  }

 private:
  std::string path_;
  std::ifstream file_;
};

}  // namespace

PlanFile ReadPlan(const std::string& folder) {
  using tvm::ffi::Array;
  using tvm::ffi::Shape;
  using tvm::ffi::String;
  Reader reader(folder + "/" + kName);
  for (const char* word : {"smartmem", "stream", "1", "weights"}) reader.Expect(word);
  const std::string name = reader.Word();
  if (name.find('/') != std::string::npos) reader.Refuse();
  const int64_t weight_bytes = reader.Number();
  reader.Expect("arena");
  const int64_t arena_bytes = reader.Number();
  const int64_t patience = reader.Number();
  reader.Expect("offsets");
  std::vector<int64_t> offsets(reader.Count()), loads;
  for (int64_t& offset : offsets) offset = reader.Number();
  reader.Expect("loads");
  Array<String> names;
  for (int64_t left = reader.Count(); left > 0; --left) {
    for (int number = 0; number < 6; ++number) loads.push_back(reader.Number());
    names.push_back(String(reader.Word()));
  }
  Plan plan(weight_bytes, arena_bytes, Shape(offsets), Shape(loads), names, patience);
  return {folder + "/" + name, weight_bytes, std::move(plan)};
}

}  // namespace smartmem::stream
