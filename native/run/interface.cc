// SPDX-License-Identifier: Apache-2.0
// The C interface, which throws no exceptions.
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "decoder.h"
#include "model.h"
#include "smartmem_run.h"

struct smartmem_run_model {
  smartmem::run::Model model;
  std::mutex making;
  std::unique_ptr<smartmem::run::Decoder> decoder;  // made when it is used first

  smartmem_run_model(const std::string& folder, int device_index, bool check) : model(folder, device_index, check) {}

  smartmem::run::Decoder& Decoding() {
    const std::lock_guard<std::mutex> lock(making);
    if (!decoder) decoder = std::make_unique<smartmem::run::Decoder>(&model);
    return *decoder;
  }
};

namespace {

using smartmem::run::Ids;
using smartmem::run::TensorInfo;
using tvm::ffi::Function;

std::string& Problem() {
  thread_local std::string problem;
  return problem;
}

// Returns the sentence of the innermost error in one line: TVM puts lines of context in front of it.
std::string Sentence(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

template <typename Work>
int Guarded(const Work& work) {
  try {
    work();
    return 0;
  } catch (const tvm::ffi::Error& error) {
    Problem() = Sentence(error.message());
  } catch (const std::bad_alloc&) {
    Problem() = "there is not enough memory for the model: use a smaller one, or compile it with a memory budget.";
  } catch (const std::exception& error) {
    Problem() = Sentence(error.what());
  }
  return -1;
}

void Need(bool holds, const char* what) {
  if (!holds) TVM_FFI_THROW(ValueError) << what << " is null: give what the function asks for.";
}

void Describe(const TensorInfo& info, smartmem_run_tensor* tensor) {
  tensor->name = info.name.c_str();
  tensor->dtype = info.dtype.c_str();
  tensor->rank = static_cast<int32_t>(info.shape.size());
  tensor->shape = info.shape.data();
  tensor->bytes = info.bytes;
  tensor->ids_below = info.ids_below;
}

void CheckIndex(int32_t index, size_t count, const char* what) {
  if (index >= 0 && static_cast<size_t>(index) < count) return;
  TVM_FFI_THROW(ValueError) << "there is no " << what << " " << index << " among the " << count << " of the model: "
                            << "count from 0.";
}

// Returns the lists of tokens that lie one behind the other.
std::vector<Ids> Lists(const int64_t* ids, const int32_t* counts, int32_t lists) {
  std::vector<Ids> found;
  for (int32_t i = 0; i < lists; ++i) {
    const int32_t count = std::max(counts[i], 0);
    Need(ids != nullptr || count == 0, "a list of tokens");
    found.emplace_back(ids, ids + count);
    ids += count;
  }
  return found;
}

void CopyScores(const std::vector<float>& found, float* scores, int64_t scores_count) {
  if (static_cast<int64_t>(found.size()) != scores_count) {
    TVM_FFI_THROW(ValueError) << "the model scores " << found.size() << " tokens, and there is room for "
                              << scores_count << ": give room for all.";
  }
  std::copy(found.begin(), found.end(), scores);
}

}  // namespace

extern "C" {

const char* smartmem_run_error(void) { return Problem().c_str(); }

int smartmem_run_set_threads(int32_t count) {
  return Guarded([&] {
    if (count < 1) TVM_FFI_THROW(ValueError) << "a CPU computes on 1 thread or more, not " << count << ".";
    setenv("TVM_NUM_THREADS", std::to_string(count).c_str(), 1);
    constexpr int kBig = 1;  // TVM's mode: the big cores
    Function::GetGlobalRequired("runtime.config_threadpool")(kBig, count);
  });
}

int32_t smartmem_run_threads(void) {
  int32_t count = 0;
  Guarded([&] { count = Function::GetGlobalRequired("runtime.NumThreads")().cast<int32_t>(); });
  return count;
}

int smartmem_run_open(const char* folder, const smartmem_run_options* options, smartmem_run_model** model) {
  return Guarded([&] {
    Need(model != nullptr, "the place for the model");
    *model = nullptr;
    Need(folder != nullptr, "the folder");
    const smartmem_run_options chosen = options == nullptr ? smartmem_run_options{} : *options;
    *model = new smartmem_run_model(folder, chosen.device_index, chosen.unchecked == 0);
  });
}

void smartmem_run_close(smartmem_run_model* model) {
  Guarded([&] { delete model; });
}

const char* smartmem_run_device(const smartmem_run_model* model) { return model->model.device(); }

int32_t smartmem_run_size_count(const smartmem_run_model* model) {
  return static_cast<int32_t>(model->model.size_count());
}

int32_t smartmem_run_is_open(const smartmem_run_model* model) { return model->model.is_open() ? 1 : 0; }

int smartmem_run_use_size(smartmem_run_model* model, int32_t size) {
  return Guarded([&] {
    CheckIndex(size, model->model.size_count(), "size");
    model->model.UseSize(static_cast<size_t>(size));
  });
}

int smartmem_run_choose_size(smartmem_run_model* model, const smartmem_run_tensor* shapes, int32_t count) {
  return Guarded([&] {
    Need(shapes != nullptr || count <= 0, "the shapes");
    std::vector<smartmem::run::NamedShape> wanted;
    for (int32_t i = 0; i < count; ++i) {
      Need(shapes[i].name != nullptr && (shapes[i].shape != nullptr || shapes[i].rank == 0), "a name or a shape");
      wanted.push_back({shapes[i].name, {shapes[i].shape, shapes[i].shape + shapes[i].rank}});
    }
    model->model.ChooseSize(wanted);
  });
}

int32_t smartmem_run_input_count(const smartmem_run_model* model) {
  return static_cast<int32_t>(model->model.inputs().size());
}

int smartmem_run_describe_input(const smartmem_run_model* model, int32_t index, smartmem_run_tensor* tensor) {
  return Guarded([&] {
    Need(tensor != nullptr, "the description");
    CheckIndex(index, model->model.inputs().size(), "input");
    Describe(model->model.inputs()[index], tensor);
  });
}

int32_t smartmem_run_output_count(const smartmem_run_model* model) {
  return static_cast<int32_t>(model->model.output_count());
}

int smartmem_run_describe_output(smartmem_run_model* model, int32_t index, smartmem_run_tensor* tensor) {
  return Guarded([&] {
    Need(tensor != nullptr, "the description");
    CheckIndex(index, model->model.output_count(), "output");
    Describe(model->model.Output(index), tensor);
  });
}

int smartmem_run_set_input(smartmem_run_model* model, const char* name, const void* data, uint64_t bytes) {
  return Guarded([&] {
    Need(name != nullptr && (data != nullptr || bytes == 0), "a name or the data");
    model->model.SetInput(name, data, bytes);
  });
}

int smartmem_run_run(smartmem_run_model* model) {
  return Guarded([&] { model->model.Run(); });
}

int smartmem_run_get_output(smartmem_run_model* model, const char* name, void* data, uint64_t bytes) {
  return Guarded([&] {
    Need(name != nullptr && (data != nullptr || bytes == 0), "a name or the place for the data");
    model->model.GetOutput(name, data, bytes);
  });
}

int32_t smartmem_run_cache_count(const smartmem_run_model* model) {
  return static_cast<int32_t>(model->model.manifest().sizes.front().caches.size());
}

int smartmem_run_clear_caches(smartmem_run_model* model) {
  return Guarded([&] { model->model.ClearCaches(); });
}

int64_t smartmem_run_capacity(smartmem_run_model* model) {
  int64_t rows = -1;
  Guarded([&] { rows = model->Decoding().capacity(); });
  return rows;
}

int64_t smartmem_run_length(smartmem_run_model* model) {
  int64_t rows = -1;
  Guarded([&] { rows = model->Decoding().length(); });
  return rows;
}

int32_t smartmem_run_sequences(smartmem_run_model* model) {
  int32_t count = -1;
  Guarded([&] { count = static_cast<int32_t>(model->Decoding().sequences()); });
  return count;
}

int64_t smartmem_run_length_of(smartmem_run_model* model, int32_t sequence) {
  int64_t rows = -1;
  Guarded([&] { rows = model->Decoding().length(sequence); });
  return rows;
}

int smartmem_run_reset(smartmem_run_model* model) {
  return Guarded([&] { model->Decoding().Reset(); });
}

int smartmem_run_reset_sequence(smartmem_run_model* model, int32_t sequence) {
  return Guarded([&] { model->Decoding().Reset(sequence); });
}

int smartmem_run_step(smartmem_run_model* model, const int64_t* ids, int32_t count, float* scores,
                      int64_t scores_count) {
  return Guarded([&] {
    Need(ids != nullptr && (scores != nullptr || scores_count == 0), "a list of tokens or the place for scores");
    std::vector<float> found = model->Decoding().Feed({Ids(ids, ids + std::max(count, 0))});
    found.resize(found.size() / static_cast<size_t>(model->Decoding().sequences()));
    CopyScores(found, scores, scores_count);
  });
}

int smartmem_run_step_each(smartmem_run_model* model, const int64_t* ids, const int32_t* counts, int32_t lists,
                           float* scores, int64_t scores_count) {
  return Guarded([&] {
    Need(counts != nullptr && (scores != nullptr || scores_count == 0), "the counts or the place for scores");
    CopyScores(model->Decoding().Feed(Lists(ids, counts, lists)), scores, scores_count);
  });
}

int smartmem_run_generate(smartmem_run_model* model, const int64_t* prompt, int32_t count, int64_t* found,
                          int32_t tokens) {
  return Guarded([&] {
    Need(prompt != nullptr && found != nullptr, "the prompt or the place for tokens");
    const Ids ids = model->Decoding().Generate(Ids(prompt, prompt + std::max(count, 0)), tokens);
    std::copy(ids.begin(), ids.end(), found);
  });
}

int smartmem_run_generate_each(smartmem_run_model* model, const int64_t* ids, const int32_t* counts, int32_t lists,
                               int64_t* found, int32_t tokens, int32_t* found_counts) {
  return Guarded([&] {
    Need(counts != nullptr && found != nullptr && found_counts != nullptr, "the counts or the place for tokens");
    const std::vector<Ids> written = model->Decoding().Generate(Lists(ids, counts, lists), tokens);
    for (size_t i = 0; i < written.size(); ++i) {
      std::copy(written[i].begin(), written[i].end(), found + static_cast<int64_t>(i) * tokens);
      found_counts[i] = static_cast<int32_t>(written[i].size());
    }
  });
}

}  // extern "C"
