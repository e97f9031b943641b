// SPDX-License-Identifier: Apache-2.0
#include "pocl_cpu.h"

namespace smartmem::opencl {

#if defined(__x86_64__)

namespace {

// The file of pocl-binary-distribution 3.0: the number is of its contents, so the record below is as it says.
constexpr const char* kFile = "/libpocl-21062cec.so";
constexpr const char* kTriple = "x86_64-unknown-linux-gnu";
// Any CPU with these instructions will do; LLVM 14 knows all that lack them. Products in local memory that are compiled
// for haswell are zero on AMD's.
const char* Cpu() { return __builtin_cpu_is("amd") ? "znver1" : "haswell"; }

bool IsSuchCpu() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

// The part of its record of a device that is used.
struct Record {
  const void* dispatch;
  char unused[624];
  const char* triple;
  const char* cpu;
};
static_assert(offsetof(Record, triple) == 632);

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

void NameCpu(Device* device) {
  if (device->driver != "3.0-rc2" || device->platform_name != kPocl || !IsSuchCpu()) return;
  auto* record = reinterpret_cast<Record*>(device->id);
  if (!EndsWith(LibraryOf(record->dispatch), kFile) || std::string(record->triple) != kTriple) return;
  // The version ends with both names, "...pthread-x86_64-unknown-linux-gnu-generic", and built kernels are kept by it.
  const std::string old = record->cpu;
  if (!EndsWith(device->version, kTriple + ("-" + old))) return;
  const char* cpu = Cpu();
  record->cpu = cpu;
  // PoCL goes on to keep kernels by the old name, so those for the new one need something else that is theirs alone.
  device->build_options = std::string("-DSMARTMEM_CPU=") + cpu + " ";
  device->version.replace(device->version.size() - old.size(), old.size(), cpu);
}

#else

void NameCpu(Device*) {}

#endif

}  // namespace smartmem::opencl
