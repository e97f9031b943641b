// SPDX-License-Identifier: Apache-2.0
// The OpenCL devices of this machine, the chosen ones, and their properties.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "object.h"

namespace smartmem::opencl {

inline constexpr const char* kPocl = "Portable Computing Language";  // the name of PoCL's platform

struct Device {
  int index = 0;  // the number in tvm.opencl(number)
  cl_platform_id platform = nullptr;
  cl_device_id id = nullptr;
  cl_context context = nullptr;  // a context of this device alone; set by GetDevice

  std::string name, vendor, version, driver, platform_name, platform_version, extensions;
  std::string build_options;  // options of this library, before the user's
  cl_ulong type = 0;  // CL_DEVICE_TYPE_...
  cl_uint compute_units = 0, clock_mhz = 0, warp_size = 1;
  size_t max_work_group_size = 0;
  size_t max_work_item_sizes[3] = {0, 0, 0};
  cl_ulong local_bytes = 0, global_bytes = 0, max_alloc_bytes = 0, cache_bytes = 0;

  bool images = false;
  size_t image2d_width = 0, image2d_height = 0, image_array_depth = 0;
  // Rows of an image over a buffer begin at multiples of this many texels; 0: no such images.
  cl_uint image_pitch_pixels = 0;
  // Whether the extension list has images over buffers; false once the driver refuses one (see Memory::View).
  std::atomic<bool> image_from_buffer = false;
  std::atomic<bool> lost = false;

  bool HasExtension(const std::string& extension) const;
  // Returns a function of an extension; null if the driver has none of that name.
  template <typename F>
  F Function(const char* name) const {
    return reinterpret_cast<F>(ExtensionFunction(platform, name));
  }
  const char* TypeName() const;    // "gpu", "cpu" or "accelerator"
  std::string Describe() const;    // "opencl:0 (NVIDIA H100)"

  // Throws unless `code` is CL_SUCCESS; sets `lost` if the code says that the device is gone.
  void Check(cl_int code, const std::string& call);
  void Check(cl_int code, const char* call) {
    if (code != CL_SUCCESS) [[unlikely]] Check(code, std::string(call));
  }
  // Throws if the device is gone.
  void Require() const;

 private:
  friend Device& GetDevice(int index);
  bool IsGone(cl_int code) const;
  std::once_flag context_once_;
  Context owned_context_;
};

// The chosen devices, in the order of tvm.opencl(number): GPUs, then accelerators, then CPUs.
// Throws if there is no OpenCL library or nothing matches the choice.
std::vector<std::unique_ptr<Device>>& Devices();

// Returns the device with its context; throws if there is none of that number.
Device& GetDevice(int index);

// The reason why there is no device, in one sentence with the remedy; empty if there is one.
std::string DeviceProblem();

// Chooses devices by a part of the name (any case) or by number; an empty string chooses everything.
// Overrides SMARTMEM_OPENCL_PLATFORM and SMARTMEM_OPENCL_DEVICE.
// Returns the number of chosen devices; throws if one is in use, or if nothing matches.
int Select(const std::string& platform, const std::string& device);

}  // namespace smartmem::opencl
