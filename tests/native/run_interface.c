// SPDX-License-Identifier: Apache-2.0
// A C program that uses the runner's interface from several threads:
//   run_interface FOLDER INPUT THREADS > output
// The model has one input and one output; both files are raw numbers. Each thread has a model of its own, and all of
// them run a common one too.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smartmem_run.h"

enum { kRuns = 5 };

static const char* folder;
static smartmem_run_model* common;
static char* input;
static char* expected;
static smartmem_run_tensor in, out;

static void fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, smartmem_run_error());
  exit(1);
}

static void expect_error(int code, const char* text) {
  if (code != -1 || strstr(smartmem_run_error(), text) == NULL) fail(text);
}

static void compare(smartmem_run_model* model) {
  char* got = malloc(out.bytes);
  if (smartmem_run_run(model) || smartmem_run_get_output(model, out.name, got, out.bytes)) fail("run");
  if (memcmp(got, expected, out.bytes) != 0) fail("another result");
  free(got);
}

static void* work(void* unused) {
  smartmem_run_model* mine = NULL;
  if (smartmem_run_set_threads(1) || smartmem_run_open(folder, NULL, &mine)) fail("open");
  if (smartmem_run_set_input(mine, in.name, input, in.bytes)) fail("set_input");
  for (int run = 0; run < kRuns; ++run) {
    compare(mine);
    if (smartmem_run_run(common)) fail("the common model");
  }
  smartmem_run_close(mine);
  return unused;
}

static void misuse(void) {
  smartmem_run_model* none = (smartmem_run_model*)&none;
  smartmem_run_tensor tensor;
  expect_error(smartmem_run_open(NULL, NULL, &none), "the folder is null");
  if (none != NULL) fail("a model that was not opened is not null");
  expect_error(smartmem_run_open("/nowhere", NULL, &none), "holds no compiled model");
  expect_error(smartmem_run_open(folder, NULL, NULL), "is null");
  expect_error(smartmem_run_set_threads(0), "1 thread or more");
  expect_error(smartmem_run_run(common), "was not given");
  expect_error(smartmem_run_describe_output(common, 0, &tensor), "after a run");
  expect_error(smartmem_run_describe_input(common, 1, &tensor), "no input 1");
  expect_error(smartmem_run_describe_input(common, -1, &tensor), "no input -1");
  expect_error(smartmem_run_set_input(common, "nonsense", input, 4), "no input 'nonsense'");
  expect_error(smartmem_run_set_input(common, in.name, input, 4), "4 were given");
  expect_error(smartmem_run_set_input(common, in.name, NULL, in.bytes), "is null");
  smartmem_run_close(NULL);
}

static void read_input(const char* path) {
  FILE* file = fopen(path, "rb");
  input = malloc(in.bytes);
  if (file == NULL || fread(input, 1, in.bytes, file) != in.bytes) fail(path);
  fclose(file);
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  folder = arguments[1];
  const int threads = atoi(arguments[3]);
  if (smartmem_run_open(folder, NULL, &common)) fail("open");
  if (smartmem_run_input_count(common) != 1 || smartmem_run_output_count(common) != 1) fail("count");
  if (smartmem_run_describe_input(common, 0, &in)) fail("describe_input");
  read_input(arguments[2]);
  misuse();
  if (smartmem_run_set_input(common, in.name, input, in.bytes) || smartmem_run_run(common)) fail("run");
  if (smartmem_run_describe_output(common, 0, &out)) fail("describe_output");
  // What describes an output is valid until the next run only.
  char* name = malloc(strlen(out.name) + 1);
  out.name = strcpy(name, out.name);
  expected = malloc(out.bytes);
  if (smartmem_run_get_output(common, out.name, expected, out.bytes)) fail("get_output");
  pthread_t* all = malloc(sizeof(pthread_t) * (size_t)threads);
  for (int i = 0; i < threads; ++i) pthread_create(&all[i], NULL, work, NULL);
  for (int i = 0; i < threads; ++i) pthread_join(all[i], NULL);
  fwrite(expected, 1, out.bytes, stdout);
  smartmem_run_close(common);
  free(all);
  free(name);
  free(input);
  free(expected);
  return 0;
}
