// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <tvm/ffi/error.h>

#include <optional>
#include <string_view>
#include <unordered_set>

#include "build_log.h"
#include "compile_worker.h"
#include "parallel.h"
#include "program_cache.h"

namespace smartmem::opencl {
namespace {

constexpr std::string_view kMark = "// Function: ";
constexpr std::string_view kKernel = "__kernel void ";

// Removes the declarations of other kernels: TVM declares every kernel of a module before each one. 90 kernels
// would have 8100 such lines, and the source of a kernel, the key of the cache, would differ between modules.
std::string WithoutOthers(std::string_view code, std::string_view name,
                          const std::unordered_set<std::string_view>& names) {
  std::string kept;
  for (size_t begin = 0; begin < code.size();) {
    const size_t end = std::min(code.find('\n', begin), code.size() - 1) + 1;
    const std::string_view line = code.substr(begin, end - begin);
    begin = end;
    if (line.starts_with(kKernel) && line.find(");") != line.npos && line.find('{') == line.npos) {
      const std::string_view declared = line.substr(kKernel.size(), line.find('(') - kKernel.size());
      if (declared != name && names.count(declared) > 0) continue;
    }
    kept += line;
  }
  return kept;
}

// The error of one kernel, kept while others are still being built.
using Failure = std::optional<std::string>;

std::string FailureText(const Device& device, const KernelSource& kernel, cl_program program, cl_int code,
                        const std::string& options) {
  const std::string log = BuildLog(device, program);
  const std::string lines = LinesNamed(log, kernel.code);
  std::string text = "the OpenCL kernel " + kernel.name + " cannot be built for " + device.Describe();
  if (!options.empty()) text += " with SMARTMEM_OPENCL_OPTIONS '" + options + "'";
  text += ": " + ErrorName(code) + ". The driver says:\n" + (log.empty() ? "(nothing)" : log);
  return text + (lines.empty() ? "" : "\nThe source there:\n" + lines);
}

cl_int Build(Device& device, cl_program program, const std::string& options) {
  const std::string all = device.build_options + options;
  return Cl().clBuildProgram(program, 1, &device.id, all.c_str(), nullptr, nullptr);
}

Program FromSource(Device& device, const KernelSource& kernel, const std::string& options, Failure* failure) {
  const char* text = kernel.code.data();
  const size_t bytes = kernel.code.size();
  cl_int code = CL_SUCCESS;
  Program program(Cl().clCreateProgramWithSource(device.context, 1, &text, &bytes, &code));
  device.Check(code, "clCreateProgramWithSource of kernel " + kernel.name);
  code = Build(device, program.get(), options);
  if (code == CL_BUILD_PROGRAM_FAILURE || code == CL_INVALID_BUILD_OPTIONS) {
    *failure = FailureText(device, kernel, program.get(), code, options);
  } else {
    device.Check(code, "clBuildProgram of kernel " + kernel.name);
  }
  return program;
}

// Returns an empty program if there is no binary, or if the driver no longer accepts it.
Program FromCache(Device& device, const ProgramCache& cache, const KernelSource& kernel, const std::string& options) {
  const std::string binary = cache.Load(kernel.code);
  if (binary.empty()) return Program();
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t bytes = binary.size();
  cl_int status = CL_SUCCESS;
  cl_int code = CL_SUCCESS;
  Program program(
      Cl().clCreateProgramWithBinary(device.context, 1, &device.id, &bytes, &data, &status, &code));
  if (code == CL_SUCCESS && status == CL_SUCCESS && Build(device, program.get(), options) == CL_SUCCESS) {
    return program;
  }
  cache.Forget(kernel.code);
  return Program();
}

void ThrowFirst(const std::vector<Failure>& failures) {
  const std::string* first = nullptr;
  size_t others = 0;
  for (const Failure& failure : failures) {
    if (!failure.has_value()) continue;
    if (first != nullptr) ++others;
    else first = &*failure;
  }
  if (first == nullptr) return;
  TVM_FFI_THROW(RuntimeError) << *first << (others == 0 ? "" : "\n" + std::to_string(others) +
                                            " more of the module's kernels cannot be built either.");
}

std::string BinaryOf(cl_program program) {
  size_t bytes = 0;
  if (Cl().clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, nullptr) != CL_SUCCESS) return "";
  std::string binary(bytes, '\0');
  char* data = binary.data();
  const cl_int code = Cl().clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(data), &data, nullptr);
  return code == CL_SUCCESS ? binary : "";
}

// The build of one module's kernels for one device.
class ModuleBuild {
 public:
  ModuleBuild(Device& device, const std::vector<KernelSource>& kernels)
      : device_(device),
        kernels_(kernels),
        options_(Environment("SMARTMEM_OPENCL_OPTIONS")),
        cache_(device, options_),
        built_(kernels.size()) {}

  std::vector<BuiltProgram> Run() {
    ForEach(kernels_.size(), Jobs(), [&](size_t i) {
      built_[i].program = FromCache(device_, cache_, kernels_[i], options_);
      built_[i].from_cache = static_cast<bool>(built_[i].program);
    });
    if (CompileElsewhere()) {
      ForEach(kernels_.size(), Jobs(), [&](size_t i) {
        if (!built_[i].program) built_[i].program = FromCache(device_, cache_, kernels_[i], options_);
      });
    }
    CompileHere();
    return std::move(built_);
  }

 private:
  // Compiles in workers; returns whether they have put programs into the cache.
  bool CompileElsewhere() {
    std::vector<const KernelSource*> kernels;
    for (size_t i = 0; i < kernels_.size(); ++i) {
      if (!built_[i].program && WantsWorker(device_, kernels_[i])) kernels.push_back(&kernels_[i]);
    }
    return CompileInWorkers(device_, kernels, options_);
  }

  void CompileHere() {
    std::vector<Failure> failures(kernels_.size());
    ForEach(kernels_.size(), Jobs(), [&](size_t i) {
      if (built_[i].program) return;
      built_[i].program = FromSource(device_, kernels_[i], options_, &failures[i]);
      // PoCL does most of its compiling at the first launch: a binary from before would save little,
      // and getting it takes longer than the launch.
      if (!failures[i] && cache_.enabled() && !CompilesAtLaunch(device_)) {
        cache_.Store(kernels_[i].code, BinaryOf(built_[i].program.get()));
      }
    });
    ThrowFirst(failures);
  }

  Device& device_;
  const std::vector<KernelSource>& kernels_;
  const std::string options_;
  const ProgramCache cache_;
  std::vector<BuiltProgram> built_;
};

}  // namespace

std::vector<KernelSource> SplitKernels(const std::string& code) {
  const std::string_view all = code;
  std::vector<std::pair<std::string_view, std::string_view>> sections;
  std::unordered_set<std::string_view> names;
  for (size_t mark = all.find(kMark); mark != all.npos;) {
    const size_t name = mark + kMark.size();
    const size_t end = std::min(all.find('\n', name), all.size());
    const size_t body = std::min(end + 1, all.size());
    mark = all.find(kMark, body);
    sections.emplace_back(all.substr(name, end - name), all.substr(body, mark - body));
    names.insert(sections.back().first);
  }
  if (sections.empty()) {
    TVM_FFI_THROW(ValueError) << "the OpenCL module holds no kernels: each has to begin with a line \"" << kMark
                              << "NAME\", as TVM's compiler writes it.";
  }
  std::vector<KernelSource> kernels;
  for (const auto& [name, section] : sections) {
    KernelSource kernel{std::string(name), WithoutOthers(section, name, names), {}, ""};
    kernel.plain = kernel.code;
    kernel.roles = AddBegins(kernel.name, &kernel.code);
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

bool CompilesAtLaunch(const Device& device) { return device.platform_name == kPocl; }

void CompileAndStore(Device& device, const KernelSource& kernel, const std::string& options) {
  Failure failure;
  const Program program = FromSource(device, kernel, options, &failure);
  if (!failure) ProgramCache(device, options).Store(kernel.code, BinaryOf(program.get()));
}

std::vector<BuiltProgram> BuildPrograms(Device& device, const std::vector<KernelSource>& kernels) {
  return ModuleBuild(device, kernels).Run();
}

}  // namespace smartmem::opencl
