// SPDX-License-Identifier: Apache-2.0
// smartmem_run: loads a compiled model, runs it, and reports the time.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "arguments.h"
#include "inputs.h"
#include "npy.h"
#include "report.h"
#include "smartmem_run.h"

namespace smartmem::run {
namespace {

constexpr int kWrong = 2;

using Model = std::unique_ptr<smartmem_run_model, void (*)(smartmem_run_model*)>;
using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void Check(int code) {
  if (code != 0) throw Mistake(smartmem_run_error());
}

double TimedRun(smartmem_run_model* model) {
  const Clock::time_point begin = Clock::now();
  Check(smartmem_run_run(model));
  return Milliseconds(begin);
}

Model Load(const Arguments& arguments) {
  const smartmem_run_options options = {arguments.device_index, arguments.unchecked};
  smartmem_run_model* model = nullptr;
  Check(smartmem_run_open(arguments.folder.c_str(), &options, &model));
  Model found(model, smartmem_run_close);
  const std::string device = smartmem_run_device(model);
  if (!arguments.device.empty() && arguments.device != device) {
    throw Mistake(arguments.folder + " was compiled for " + device + " and does not run on " + arguments.device +
                  ": compile it for that device.");
  }
  return found;
}

// Chooses among several sizes by the shapes that are asked for, and those of files.
void ChooseSize(const Arguments& arguments, smartmem_run_model* model) {
  std::map<std::string, std::vector<int64_t>> shapes = arguments.shapes;
  if (smartmem_run_size_count(model) > 1 || smartmem_run_is_open(model) != 0) {
    for (const auto& [name, file] : arguments.inputs) {
      if (const auto shape = ShapeInFile(file)) shapes.emplace(name, *shape);
    }
  }
  std::vector<smartmem_run_tensor> wanted;
  for (const auto& [name, shape] : shapes) {
    wanted.push_back({name.c_str(), "", static_cast<int32_t>(shape.size()), shape.data(), 0, 0});
  }
  Check(smartmem_run_choose_size(model, wanted.data(), static_cast<int32_t>(wanted.size())));
}

void SetInputs(const Arguments& arguments, smartmem_run_model* model) {
  std::mt19937_64 random(arguments.seed);
  std::set<std::string> names;
  for (int32_t i = 0; i < smartmem_run_input_count(model); ++i) {
    smartmem_run_tensor input;
    Check(smartmem_run_describe_input(model, i, &input));
    const auto file = arguments.inputs.find(input.name);
    const std::vector<char> data = file != arguments.inputs.end() ? ReadArray(file->second, input)
                                   : arguments.zeros              ? std::vector<char>(input.bytes)
                                                                  : RandomNumbers(input, &random);
    Check(smartmem_run_set_input(model, input.name, data.data(), data.size()));
    names.insert(input.name);
  }
  for (const auto& [name, file] : arguments.inputs) {
    if (names.count(name) != 0) continue;
    std::string all;
    for (const std::string& each : names) all += (all.empty() ? "'" : ", '") + each + "'";
    throw Mistake("the model has no input '" + name + "': use one of its names, " + (all.empty() ? "none" : all) + ".");
  }
}

// Returns a file name for an output, whose name may be a path of a framework's modules.
std::string FileName(const std::string& name, int32_t index, std::set<std::string>* taken) {
  std::string file;
  for (const char each : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(each)) != 0 || std::strchr("-_.", each) != nullptr;
    file += plain ? each : '_';
  }
  if (file.empty() || file[0] == '.') file = "_" + file;
  if (!taken->insert(file).second) taken->insert(file += "_" + std::to_string(index));
  return file + ".npy";
}

std::vector<OutputReport> Outputs(const Arguments& arguments, smartmem_run_model* model) {
  std::vector<OutputReport> outputs;
  std::set<std::string> taken;
  for (int32_t i = 0; i < smartmem_run_output_count(model); ++i) {
    smartmem_run_tensor output;
    Check(smartmem_run_describe_output(model, i, &output));
    std::string file;
    if (!arguments.output.empty()) {
      file = arguments.output + "/" + FileName(output.name, i, &taken);
      std::vector<char> data(output.bytes);
      Check(smartmem_run_get_output(model, output.name, data.data(), data.size()));
      WriteArray(file, output, data);
    }
    outputs.push_back({output.name, output.dtype, file, {output.shape, output.shape + output.rank}});
  }
  return outputs;
}

void MakeFolder(const std::string& folder) {
  struct stat facts;
  const bool there = stat(folder.c_str(), &facts) == 0;
  if (there && !S_ISDIR(facts.st_mode)) throw Mistake("--output " + folder + " is a file: give a folder.");
  if (there || mkdir(folder.c_str(), 0777) == 0) return;
  throw Mistake("--output " + folder + " cannot be made (" + std::strerror(errno) + "): give another folder.");
}

double PeakMegabytes() {
  // Not getrusage, which also counts the program that started this one.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, 6, "VmHWM:") == 0) return std::strtod(line.c_str() + 6, nullptr) * 1024 / 1e6;
  }
  return 0;
}

// TVM's default is half of the logical CPUs, which is wrong for cores with one thread each.
void SetThreads(int32_t wanted) {
  if (wanted == 0 && std::getenv("TVM_NUM_THREADS") != nullptr) return;
  const auto cores = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  Check(smartmem_run_set_threads(wanted > 0 ? wanted : cores));
}

Report Run(const Arguments& arguments) {
  if (!arguments.output.empty()) MakeFolder(arguments.output);
  SetThreads(arguments.threads);
  const Clock::time_point begin = Clock::now();
  const Model model = Load(arguments);
  const double load_ms = Milliseconds(begin);
  ChooseSize(arguments, model.get());
  SetInputs(arguments, model.get());
  const double first_ms = TimedRun(model.get());
  for (int64_t i = 1; i < arguments.warmup; ++i) TimedRun(model.get());
  std::vector<double> times(static_cast<size_t>(arguments.repeat), first_ms);
  for (size_t i = arguments.warmup == 0 ? 1 : 0; i < times.size(); ++i) times[i] = TimedRun(model.get());
  const std::vector<OutputReport> outputs = Outputs(arguments, model.get());
  return {arguments.folder,  smartmem_run_device(model.get()), smartmem_run_threads(), arguments.warmup,
          arguments.repeat,  load_ms,                          first_ms,               PeakMegabytes(),
          Summed(times),     outputs};
}

Written Write(const Arguments& arguments) {
  SetThreads(arguments.threads);
  const Clock::time_point begin = Clock::now();
  const Model model = Load(arguments);
  const double load_ms = Milliseconds(begin);
  const size_t lists = arguments.prompts.size(), tokens = static_cast<size_t>(arguments.tokens);
  std::vector<int64_t> prompts, found(lists * tokens);
  std::vector<int32_t> counts, written(lists, arguments.tokens);
  for (const std::vector<int64_t>& each : arguments.prompts) {
    prompts.insert(prompts.end(), each.begin(), each.end());
    counts.push_back(static_cast<int32_t>(each.size()));
  }
  const Clock::time_point first = Clock::now();
  if (lists == 1) {
    Check(smartmem_run_generate(model.get(), prompts.data(), counts[0], found.data(), arguments.tokens));
  } else {
    Check(smartmem_run_generate_each(model.get(), prompts.data(), counts.data(), static_cast<int32_t>(lists),
                                     found.data(), arguments.tokens, written.data()));
  }
  const double total_ms = Milliseconds(first);
  std::vector<std::vector<int64_t>> ids;
  for (size_t i = 0; i < lists; ++i) {
    const auto line = found.begin() + static_cast<ptrdiff_t>(i * tokens);
    ids.emplace_back(line, line + written[i]);
  }
  return {arguments.folder,
          smartmem_run_device(model.get()),
          smartmem_run_threads(),
          static_cast<int64_t>(prompts.size()),
          smartmem_run_capacity(model.get()),
          load_ms,
          total_ms,
          PeakMegabytes(),
          ids};
}

template <typename Found>
void Print(const Arguments& arguments, const Found& found) {
  std::fputs((arguments.json ? AsJson(found) : AsText(found)).c_str(), stdout);
  if (std::fflush(stdout) != 0) throw Mistake("what was found cannot be printed: see where the output goes.");
}

// A model for another CPU of the same kind ends here; the system itself would not report the reason.
void OnIllegalInstruction(int) {
  constexpr char kText[] =
      "smartmem_run: error: the model has instructions that this CPU lacks: compile it for this CPU, "
      "as with --target '{\"kind\": \"llvm\", \"mcpu\": \"...\"}'.\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(kWrong);
}

int Main(int count, char** texts) {
  signal(SIGILL, OnIllegalInstruction);
  try {
    const Arguments arguments = Parse(count, texts);
    if (arguments.help) {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (arguments.prompts.empty()) {
      Print(arguments, Run(arguments));
    } else {
      Print(arguments, Write(arguments));
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "smartmem_run: error: %s\n", error.what());
    return kWrong;
  }
}

}  // namespace
}  // namespace smartmem::run

int main(int count, char** texts) { return smartmem::run::Main(count, texts); }
