// SPDX-License-Identifier: Apache-2.0
#include "sharing.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <map>
#include <utility>

#include "environment.h"

namespace smartmem::opencl {
namespace {

// For each parameter the one whose pointer it takes (signature.h); empty if no two parameters share one.
using Owners = std::vector<size_t>;
using Variant = std::pair<const DeviceKernel*, Owners>;

bool Shares(const Device& device) {
  const std::string chosen = Environment("SMARTMEM_OPENCL_SHARED_ARGUMENTS");
  return chosen.empty() ? !CompilesAtLaunch(device) : chosen != "0";
}

Owners OwnersOf(const NotedLaunch& launch) {
  const std::vector<Role>& roles = launch.kernel->roles;
  Owners owners;
  for (size_t i = 0; i < roles.size(); ++i) {
    const auto same = [&](size_t owner) {
      return roles[owner] == Role::kBuffer && launch.arguments[owner].id == launch.arguments[i].id;
    };
    const bool buffer = roles[i] == Role::kBuffer && launch.arguments[i].id != 0;
    const auto first = buffer ? std::find_if(owners.begin(), owners.end(), same) : owners.end();
    owners.push_back(first == owners.end() ? i : *first);
  }
  bool shared = false;
  for (size_t i = 0; i < owners.size(); ++i) shared |= owners[i] != i;
  return shared ? owners : Owners();
}

KernelSource SourceOf(const NotedLaunch& launch, const Owners& owners) {
  KernelSource source{launch.name, launch.kernel->plain, {}, ""};
  source.roles = AddBegins(source.name, &source.code, owners);
  return source;
}

// Builds the programs of all launches that have several tensors in one buffer.
std::map<Variant, Program> Programs(Device& device, const std::vector<NotedLaunch>& noted) {
  std::map<Variant, Program> programs;
  std::vector<KernelSource> sources;
  std::vector<Variant> variants;
  for (const NotedLaunch& launch : noted) {
    Variant variant(launch.kernel, OwnersOf(launch));
    if (variant.second.empty() || !programs.emplace(variant, Program()).second) continue;
    sources.push_back(SourceOf(launch, variant.second));
    variants.push_back(std::move(variant));
  }
  std::vector<BuiltProgram> built = BuildPrograms(device, sources);
  for (size_t i = 0; i < built.size(); ++i) programs[variants[i]] = std::move(built[i].program);
  return programs;
}

Kernel NewKernel(Device& device, cl_program program, const std::string& name) {
  cl_int code = CL_SUCCESS;
  Kernel kernel(Cl().clCreateKernel(program, name.c_str(), &code));
  device.Check(code, "clCreateKernel of " + name);
  return kernel;
}

void SetArguments(const NotedLaunch& launch, const Owners& owners, cl_kernel kernel) {
  cl_uint index = 0;
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    if (i < owners.size() && owners[i] != i) continue;
    const Argument& each = launch.arguments[i];
    Check(Cl().clSetKernelArg(kernel, index++, each.bytes, &each.integer),
          "argument " + std::to_string(i) + " of kernel " + launch.name);
  }
}

}  // namespace

std::vector<RecordedLaunch> WithOwnKernels(Device& device, const std::vector<NotedLaunch>& noted) {
  std::map<Variant, Program> programs;
  try {
    if (Shares(device)) programs = Programs(device, noted);
  } catch (const tvm::ffi::Error&) {
    programs.clear();  // the unchanged kernels compute the same
  }
  std::vector<RecordedLaunch> launches;
  for (const NotedLaunch& each : noted) {
    const auto found = programs.find({each.kernel, OwnersOf(each)});
    const bool shares = found != programs.end();
    const cl_program program = shares ? found->second.get() : each.kernel->program.get();
    Kernel kernel = NewKernel(device, program, each.name);
    SetArguments(each, shares ? found->first.second : Owners(), kernel.get());
    launches.push_back({each.name, std::move(kernel), each.sizes});
  }
  return launches;
}

}  // namespace smartmem::opencl
