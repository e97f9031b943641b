// SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <string_view>
#include <utility>

namespace smartmem::run {

const char* const kUsage =
    "usage: smartmem_run DIR [options]\n"
    "Runs a folder of `smartmem compile` and prints how long that takes.\n"
    "  --input NAME=FILE   a .npy file, or any other file with the numbers alone (repeatable; default: random)\n"
    "  --shape NAME:SIZES  which of several sizes, as x:1,3,224,224 (repeatable; default: that of the files)\n"
    "  --output FOLDER     write the outputs there, as NAME.npy\n"
    "  --repeat N          timed runs (default: 10)\n"
    "  --warmup N          runs before them (default: 2)\n"
    "  --device KIND[:N]   refuse a model that is for another device than cpu or opencl; N is which OpenCL device\n"
    "  --threads N         of a CPU (default: TVM_NUM_THREADS, else one per core)\n"
    "  --seed N            of random inputs (default: 0); --zeros gives zeros instead\n"
    "  --prompt-ids IDS    of a model that keeps caches: write the tokens with the largest scores after 1,2,3\n"
    "                      (repeatable: a prompt for each sequence of a model with a batch)\n"
    "  --tokens N          how many of them (default: 1)\n"
    "  --no-check          do not read all files for their checksums first\n"
    "  --json              print one JSON object\n"
    "Exit codes: 0 as asked, 2 bad usage, bad input or an error.\n";

namespace {

int64_t Number(const std::string& option, const std::string& text, int64_t least) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least ||
      number > std::numeric_limits<int32_t>::max()) {
    throw Mistake(option + " is '" + text + "' and must be a whole number from " + std::to_string(least) + " on.");
  }
  return number;
}

void AddInput(const std::string& text, Arguments* found) {
  // A name and a file may both contain a sign of equality: the first one ends the name.
  const size_t sign = text.find('=');
  if (sign == std::string::npos || sign == 0 || sign + 1 == text.size()) {
    throw Mistake("--input " + text + " must be a name, a sign of equality and a file, as in --input x=x.npy.");
  }
  if (!found->inputs.emplace(text.substr(0, sign), text.substr(sign + 1)).second) {
    throw Mistake("--input gives '" + text.substr(0, sign) + "' twice: give each input one file.");
  }
}

void AddShape(const std::string& text, Arguments* found) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    throw Mistake("--shape " + text + " must be a name, a colon and sizes, as in --shape x:1,3,224,224.");
  }
  std::vector<int64_t> shape;
  const std::string sizes = text.substr(colon + 1);
  for (size_t at = 0, comma = 0; !sizes.empty() && comma < sizes.size(); at = comma + 1) {
    comma = std::min(sizes.find(',', at), sizes.size());
    shape.push_back(Number("A size of --shape", sizes.substr(at, comma - at), 0));
  }
  if (!found->shapes.emplace(text.substr(0, colon), shape).second) {
    throw Mistake("--shape gives '" + text.substr(0, colon) + "' twice: give each input one shape.");
  }
}

void AddPrompt(const std::string& text, Arguments* found) {
  std::vector<int64_t> prompt;
  for (size_t at = 0, comma = 0; comma < text.size(); at = comma + 1) {
    comma = std::min(text.find(',', at), text.size());
    prompt.push_back(Number("An id of --prompt-ids", text.substr(at, comma - at), 0));
  }
  found->prompts.push_back(std::move(prompt));
  found->tokens = std::max(found->tokens, 1);
}

void SetDevice(const std::string& text, Arguments* found) {
  const size_t colon = text.find(':');
  found->device = text.substr(0, colon);
  if (found->device != "cpu" && found->device != "opencl") {
    throw Mistake("--device " + text + " is none that this program runs on: give cpu, opencl or opencl:1.");
  }
  if (colon != std::string::npos) {
    found->device_index = static_cast<int32_t>(Number("The number of --device", text.substr(colon + 1), 0));
  }
}

using Flag = std::function<void(Arguments*)>;
using Option = std::function<void(const std::string&, Arguments*)>;

const std::map<std::string, Flag, std::less<>>& Flags() {
  static const auto* flags = new std::map<std::string, Flag, std::less<>>{
      {"--json", [](Arguments* found) { found->json = true; }},
      {"--zeros", [](Arguments* found) { found->zeros = true; }},
      {"--no-check", [](Arguments* found) { found->unchecked = true; }},
      {"--help", [](Arguments* found) { found->help = true; }},
      {"-h", [](Arguments* found) { found->help = true; }},
  };
  return *flags;
}

const std::map<std::string, Option, std::less<>>& Options() {
  static const auto* options = new std::map<std::string, Option, std::less<>>{
      {"--input", AddInput},
      {"--shape", AddShape},
      {"--output", [](const std::string& text, Arguments* found) { found->output = text; }},
      {"--device", SetDevice},
      {"--prompt-ids", AddPrompt},
      {"--tokens",
       [](const std::string& text, Arguments* found) {
         found->tokens = static_cast<int32_t>(Number("--tokens", text, 1));
       }},
      {"--repeat", [](const std::string& text, Arguments* found) { found->repeat = Number("--repeat", text, 1); }},
      {"--warmup", [](const std::string& text, Arguments* found) { found->warmup = Number("--warmup", text, 0); }},
      {"--seed", [](const std::string& text, Arguments* found) { found->seed = Number("--seed", text, 0); }},
      {"--threads",
       [](const std::string& text, Arguments* found) {
         found->threads = static_cast<int32_t>(Number("--threads", text, 1));
       }},
  };
  return *options;
}

}  // namespace

Arguments Parse(int count, char** texts) {
  Arguments found;
  for (int i = 1; i < count; ++i) {
    std::string text = texts[i], value;
    const size_t sign = text.compare(0, 2, "--") == 0 ? text.find('=') : std::string::npos;
    if (sign != std::string::npos) value = text.substr(sign + 1), text.resize(sign);
    if (const auto flag = Flags().find(text); flag != Flags().end() && sign == std::string::npos) {
      flag->second(&found);
    } else if (const auto option = Options().find(text); option != Options().end()) {
      if (sign == std::string::npos && i + 1 < count) value = texts[++i];
      if (value.empty()) throw Mistake(text + " needs a value: see --help.");
      option->second(value, &found);
    } else if (text.empty() || text[0] == '-') {
      throw Mistake("there is no option '" + std::string(texts[i]) + "': see --help.");
    } else if (!found.folder.empty()) {
      throw Mistake("there is one folder too many, '" + text + "': give one.");
    } else {
      found.folder = text;
    }
  }
  if (found.prompts.empty() && found.tokens != 0) throw Mistake("--tokens needs a prompt: give --prompt-ids 1,2,3.");
  if (found.folder.empty() && !found.help) throw Mistake("the folder of a model is missing: see --help.");
  return found;
}

}  // namespace smartmem::run
