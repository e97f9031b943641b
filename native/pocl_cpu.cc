// SPDX-License-Identifier: Apache-2.0
#include "pocl_cpu.h"

namespace smartmem::opencl {

#if defined(__x86_64__)

namespace {

// The file of pocl-binary-distribution 3.0: the number is of its contents, so the record below is as it says.
constexpr const char* kFile = "libpocl-21062cec.so";
constexpr const char* kTriple = "x86_64-unknown-linux-gnu";

// The part of its record of a device that is used.
struct Record {
  const void* dispatch;
  char unused[624];
  const char* triple;
  const char* cpu;
};
static_assert(offsetof(Record, triple) == 632);

// The CPU that the built-in functions were compiled for; null for CPUs so old that LLVM 14 knows them.
const char* CpuOfBuiltins() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return "skylake-avx512";
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") ? "haswell"
                                                                                                           : nullptr;
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

void NameCpu(Device* device) {
  if (device->driver != "3.0-rc2" || device->platform_name != "Portable Computing Language") return;
  auto* record = reinterpret_cast<Record*>(device->id);
  if (!EndsWith(LibraryOf(record->dispatch), std::string("/") + kFile)) return;
  // The version ends with both names, "...pthread-x86_64-unknown-linux-gnu-generic".
  const char* cpu = CpuOfBuiltins();
  const std::string known = std::string(kTriple) + "-" + record->cpu;
  if (cpu == nullptr || std::string(record->triple) != kTriple || !EndsWith(device->version, known)) return;
  record->cpu = cpu;
  // It is part of what built kernels are kept by.
  device->version.replace(device->version.size() - known.size(), known.size(), std::string(kTriple) + "-" + cpu);
}

#else

void NameCpu(Device*) {}

#endif

}  // namespace smartmem::opencl
