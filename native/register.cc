// SPDX-License-Identifier: Apache-2.0
// The functions behind smartmem_tvm.runtime.opencl.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>

#include "device.h"
#include "playback.h"
#include "register.h"

namespace smartmem::opencl {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Map;
using tvm::ffi::String;

Map<String, Any> Describe(const Device& device) {
  const auto number = [](auto value) { return static_cast<int64_t>(value); };
  return {
      {"index", number(device.index)},
      {"name", String(device.name)},
      {"vendor", String(device.vendor)},
      {"platform", String(device.platform_name)},
      {"version", String(device.version)},
      {"driver", String(device.driver)},
      {"type", String(device.TypeName())},
      {"compute_units", number(device.compute_units)},
      {"max_work_group_size", number(device.max_work_group_size)},
      {"local_bytes", number(device.local_bytes)},
      {"global_bytes", number(device.global_bytes)},
      {"max_alloc_bytes", number(device.max_alloc_bytes)},
      {"image2d_width", number(device.image2d_width)},
      {"image2d_height", number(device.image2d_height)},
      {"image_array_depth", number(device.image_array_depth)},
      {"image_pitch_pixels", number(device.image_pitch_pixels)},
      {"half", device.HasExtension("cl_khr_fp16")},
      {"images", device.images},
      {"image_from_buffer", device.image_from_buffer.load()},
      {"replay", String(WayOf(device))},
  };
}

Array<Map<String, Any>> DescribeAll() {
  Array<Map<String, Any>> all;
  for (const auto& device : Devices()) all.push_back(Describe(*device));
  return all;
}

Map<String, int64_t> LiveObjects() {
  Map<String, int64_t> counts;
  for (size_t kind = 0; kind < kKindNames.size(); ++kind) counts.Set(kKindNames[kind], live_objects[kind].load());
  return counts;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef()
      .def("smartmem.opencl.problem", [] { return String(DeviceProblem()); })
      .def("smartmem.opencl.devices", DescribeAll)
      .def("smartmem.opencl.select",
           [](String platform, String device) { return Select(std::string(platform), std::string(device)); })
      .def("smartmem.opencl.live_objects", LiveObjects);
}

}  // namespace
}  // namespace smartmem::opencl
