// SPDX-License-Identifier: Apache-2.0
#include "pocl_cpu.h"

namespace smartmem::opencl {

#if defined(__x86_64__)

namespace {

// The file of pocl-binary-distribution 3.0: the number is a hash of its contents, so the layout of the record is known.
constexpr const char* kFile = "/libpocl-21062cec.so";
constexpr const char* kTriple = "x86_64-unknown-linux-gnu";
// Any CPU with these instructions can run the code; LLVM 14 supports every CPU that lacks them. On CPUs of AMD,
// products in local memory that are compiled for haswell are zero.
const char* Cpu() { return __builtin_cpu_is("amd") ? "znver1" : "haswell"; }

bool IsSuchCpu() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

// The used part of PoCL's record of a device.
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
  // The version ends with both names, "...pthread-x86_64-unknown-linux-gnu-generic", and is part of the cache's key.
  const std::string old = record->cpu;
  if (!EndsWith(device->version, kTriple + ("-" + old))) return;
  const char* cpu = Cpu();
  record->cpu = cpu;
  // PoCL's own cache still uses the old name, so kernels for the new one need another difference: a build option.
  device->build_options = std::string("-DSMARTMEM_CPU=") + cpu + " ";
  device->version.replace(device->version.size() - old.size(), old.size(), cpu);
}

#else

void NameCpu(Device*) {}

#endif

}  // namespace smartmem::opencl
