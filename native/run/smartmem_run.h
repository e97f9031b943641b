// SPDX-License-Identifier: Apache-2.0
// Runs a folder of `smartmem compile` without Python; for C11 and C++.
//
//   smartmem_run_model* model = NULL;
//   if (smartmem_run_open("swin", NULL, &model) || smartmem_run_set_input(model, "x", pixels, sizeof pixels) ||
//       smartmem_run_run(model) || smartmem_run_get_output(model, "y", scores, sizeof scores)) {
//     fprintf(stderr, "%s\n", smartmem_run_error());
//   }
//   smartmem_run_close(model);
//
// Functions that return int return 0, or -1 after an error, which `smartmem_run_error` of the same thread describes. A
// model may be used from any thread; calls on one model are serialized, and each opened model has its own memory for
// tensors. Models of one folder share the code, and on a CPU the pages of the weights.
#ifndef SMARTMEM_RUN_H_
#define SMARTMEM_RUN_H_

#include <stdint.h>

#if defined(__GNUC__)
#define SMARTMEM_RUN_API __attribute__((visibility("default")))
#else
#define SMARTMEM_RUN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smartmem_run_model smartmem_run_model;

typedef struct {
  const char* name;      // the model's
  const char* dtype;     // "float32", "int64", "bool", "bfloat16", ...; types of fewer than eight bits take a byte each
  int32_t rank;          // 0 for a scalar
  const int64_t* shape;  // `rank` sizes
  uint64_t bytes;        // of all numbers, contiguous, the last dimension fastest
  int64_t ids_below;     // exclusive upper bound of the numbers of an input of indices; 0 if unknown
} smartmem_run_tensor;   // valid until the model is closed; an output's until the next run or size

typedef struct {
  int32_t device_index;  // number of the OpenCL device
  int32_t unchecked;     // not 0: skip the check of all files' checksums, two seconds for half a gigabyte
} smartmem_run_options;

// Why the last call in this thread failed; empty if none has failed.
SMARTMEM_RUN_API const char* smartmem_run_error(void);

// Sets the threads of a CPU, from the next run of this thread on, and for threads that have not run a model yet.
SMARTMEM_RUN_API int smartmem_run_set_threads(int32_t count);
SMARTMEM_RUN_API int32_t smartmem_run_threads(void);

// Loads a folder; `options` may be null. `*model` is null if that fails.
SMARTMEM_RUN_API int smartmem_run_open(const char* folder, const smartmem_run_options* options,
                                       smartmem_run_model** model);
// Frees a model; null is allowed. No other call may be running on the model.
SMARTMEM_RUN_API void smartmem_run_close(smartmem_run_model* model);

SMARTMEM_RUN_API const char* smartmem_run_device(const smartmem_run_model* model);  // "cpu" or "opencl"

// A model of several sizes begins with the first of them. Inputs, outputs and runs are those of the size in use.
SMARTMEM_RUN_API int32_t smartmem_run_size_count(const smartmem_run_model* model);
SMARTMEM_RUN_API int smartmem_run_use_size(smartmem_run_model* model, int32_t size);  // from 0
// Uses the size whose inputs have the names and shapes of `count` tensors, of which nothing else is read.
// An input that is not among them follows from the others.
SMARTMEM_RUN_API int smartmem_run_choose_size(smartmem_run_model* model, const smartmem_run_tensor* shapes,
                                              int32_t count);
// 1 if a dimension is open: `smartmem_run_choose_size` then takes any size in its range, of which inputs that had other
// shapes are to be set again. The sizes that are counted are those of its tiles, or its capacities.
SMARTMEM_RUN_API int32_t smartmem_run_is_open(const smartmem_run_model* model);

SMARTMEM_RUN_API int32_t smartmem_run_input_count(const smartmem_run_model* model);
SMARTMEM_RUN_API int smartmem_run_describe_input(const smartmem_run_model* model, int32_t index,
                                                 smartmem_run_tensor* tensor);
SMARTMEM_RUN_API int32_t smartmem_run_output_count(const smartmem_run_model* model);
// Known after the first run.
SMARTMEM_RUN_API int smartmem_run_describe_output(smartmem_run_model* model, int32_t index,
                                                  smartmem_run_tensor* tensor);

// Copies an input, which is kept for all runs until it is set again.
SMARTMEM_RUN_API int smartmem_run_set_input(smartmem_run_model* model, const char* name, const void* data,
                                            uint64_t bytes);
// Runs the model and returns when the device has finished.
SMARTMEM_RUN_API int smartmem_run_run(smartmem_run_model* model);
// Copies an output of the last run.
SMARTMEM_RUN_API int smartmem_run_get_output(smartmem_run_model* model, const char* name, void* data, uint64_t bytes);

// A model with caches (`smartmem compile --cache`) keeps them between runs, at fixed addresses, zeros at first. Its
// inputs and outputs are those without caches. The functions below write sequences of tokens with it, one, or as many
// as the model's batch, each with a length of its own; a call while another thread is in one, and tokens for which the
// caches have no room, are errors, and nothing is written then.
SMARTMEM_RUN_API int32_t smartmem_run_cache_count(const smartmem_run_model* model);
SMARTMEM_RUN_API int smartmem_run_clear_caches(smartmem_run_model* model);
// Rows of the caches, the most tokens of a sequence, how many of them are taken, by the longest one or by sequence 0,
// 1, ..., and how many sequences there are; -1 after an error.
SMARTMEM_RUN_API int64_t smartmem_run_capacity(smartmem_run_model* model);
SMARTMEM_RUN_API int64_t smartmem_run_length(smartmem_run_model* model);
SMARTMEM_RUN_API int64_t smartmem_run_length_of(smartmem_run_model* model, int32_t sequence);
SMARTMEM_RUN_API int32_t smartmem_run_sequences(smartmem_run_model* model);
// Begins all sequences again, or one of them.
SMARTMEM_RUN_API int smartmem_run_reset(smartmem_run_model* model);
SMARTMEM_RUN_API int smartmem_run_reset_sequence(smartmem_run_model* model, int32_t sequence);
// Appends `count` tokens to the first sequence and copies the scores of the next one, of which there are
// `scores_count`, one for each token that the model knows.
SMARTMEM_RUN_API int smartmem_run_step(smartmem_run_model* model, const int64_t* ids, int32_t count, float* scores,
                                       int64_t scores_count);
// The same for several: `lists` lists of `counts` tokens lie one behind the other in `ids`, for the first sequences;
// one without tokens stays as it is. Scores are those of all sequences of the model, NaN for one that has no tokens.
SMARTMEM_RUN_API int smartmem_run_step_each(smartmem_run_model* model, const int64_t* ids, const int32_t* counts,
                                            int32_t lists, float* scores, int64_t scores_count);
// Begins a sequence and copies the `tokens` tokens with the largest scores that follow a prompt.
SMARTMEM_RUN_API int smartmem_run_generate(smartmem_run_model* model, const int64_t* prompt, int32_t count,
                                           int64_t* found, int32_t tokens);
// The same for several prompts: those of list i are copied to `found + i * tokens`, and how many they are to
// `found_counts[i]`, fewer than `tokens` where the caches are full before.
SMARTMEM_RUN_API int smartmem_run_generate_each(smartmem_run_model* model, const int64_t* ids, const int32_t* counts,
                                                int32_t lists, int64_t* found, int32_t tokens, int32_t* found_counts);

#ifdef __cplusplus
}
#endif

#endif  // SMARTMEM_RUN_H_
