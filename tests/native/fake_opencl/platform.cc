// SPDX-License-Identifier: Apache-2.0
// Platforms, devices and contexts of the fake driver.
#include <algorithm>

#include "world.h"

namespace fake {
namespace {

constexpr cl_uint kAvailable = 0x1027;  // CL_DEVICE_AVAILABLE

cl_bitfield DeviceType() {
  const std::string& type = Config().type;
  if (type == "cpu") return CL_DEVICE_TYPE_CPU;
  return type == "gpu" ? CL_DEVICE_TYPE_GPU : CL_DEVICE_TYPE_ACCELERATOR;
}

std::string Extensions() {
  std::string text = "cl_khr_byte_addressable_store";
  if (Config().half) text += " cl_khr_fp16";
  if (Config().image_from_buffer) text += " cl_khr_image2d_from_buffer";
  return text;
}

std::string Name(const std::vector<std::string>& names, size_t index, const char* otherwise) {
  return index < names.size() ? names[index] : otherwise + std::to_string(index);
}

template <typename Handle>
void List(const std::vector<Handle>& all, cl_uint room, Handle* out, cl_uint* count) {
  Require(out != nullptr || count != nullptr, CL_INVALID_VALUE, "nowhere to answer");
  Require(out == nullptr || room > 0, CL_INVALID_VALUE, "no room for an answer");
  if (count != nullptr) *count = static_cast<cl_uint>(all.size());
  if (out != nullptr) std::copy_n(all.begin(), std::min<size_t>(room, all.size()), out);
}

void DeviceInfo(const Device& device, cl_uint what, size_t room, void* out, size_t* needed) {
  const Settings& config = Config();
  auto number = [&](auto value) { AnswerValue(value, room, out, needed); };
  auto text = [&](const std::string& value) { AnswerText(value, room, out, needed); };
  switch (what) {
    case CL_DEVICE_TYPE: return number(DeviceType());
    case CL_DEVICE_MAX_COMPUTE_UNITS: return number(cl_uint{4});
    case CL_DEVICE_MAX_WORK_GROUP_SIZE: return number(size_t{config.work_group});
    case CL_DEVICE_MAX_WORK_ITEM_SIZES: {
      size_t sizes[3] = {config.work_group, config.work_group, 64};
      return Answer(sizes, sizeof(sizes), room, out, needed);
    }
    case CL_DEVICE_MAX_CLOCK_FREQUENCY: return number(cl_uint{1000});
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE: return number(cl_ulong{config.max_alloc});
    case CL_DEVICE_IMAGE2D_MAX_WIDTH: return number(size_t{config.width});
    case CL_DEVICE_IMAGE2D_MAX_HEIGHT: return number(size_t{config.height});
    case CL_DEVICE_IMAGE_MAX_ARRAY_SIZE: return number(size_t{config.depth});
    case CL_DEVICE_IMAGE_SUPPORT: return number(cl_bool{config.images});
    case CL_DEVICE_GLOBAL_MEM_CACHE_SIZE: return number(cl_ulong{1} << 20);
    case CL_DEVICE_GLOBAL_MEM_SIZE: return number(cl_ulong{config.memory});
    case CL_DEVICE_LOCAL_MEM_SIZE: return number(cl_ulong{32768});
    case kAvailable: return number(cl_bool{!device.lost});
    case CL_DEVICE_NAME: return text(device.name);
    case CL_DEVICE_VENDOR: return text("Fake vendor");
    case CL_DRIVER_VERSION: return text(config.driver);
    case CL_DEVICE_VERSION: return text("OpenCL 1.2 fake");
    case CL_DEVICE_EXTENSIONS: return text(Extensions());
    case CL_DEVICE_IMAGE_PITCH_ALIGNMENT:
    case CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT:
      Require(config.image_from_buffer, CL_INVALID_VALUE, "needs cl_khr_image2d_from_buffer");
      return number(static_cast<cl_uint>(config.pitch));
  }
  throw Refusal{CL_INVALID_VALUE, "unknown question " + std::to_string(what)};
}

}  // namespace

World::World() {
  for (size_t p = 0; p < Config().devices.size(); ++p) {
    auto platform = std::make_shared<Platform>();
    platform->name = Name(Config().platform_names, p, "Fake platform ");
    for (int left = std::stoi(Config().devices[p]); left > 0; --left) {
      auto device = std::make_shared<Device>();
      device->index = static_cast<int>(devices.size());
      device->name = Name(Config().device_names, devices.size(), "Fake device ");
      objects[next_handle += 16] = device;
      platform->devices.push_back(reinterpret_cast<cl_device_id>(next_handle));
      devices.push_back(device);
    }
    objects[next_handle += 16] = platform;
    platforms.push_back(reinterpret_cast<cl_platform_id>(next_handle));
  }
  if (Config().lose.size() == 2) {
    devices.at(std::stoi(Config().lose[0]))->commands_left = std::stoll(Config().lose[1]);
  }
}

}  // namespace fake

using namespace fake;

FAKE_EXPORT cl_int clGetPlatformIDs(cl_uint room, cl_platform_id* out, cl_uint* count) {
  return Call(__func__, [&] {
    List(TheWorld().platforms, room, out, count);
    Require(!TheWorld().platforms.empty(), CL_PLATFORM_NOT_FOUND_KHR, "no platform");
  });
}

FAKE_EXPORT cl_int clGetPlatformInfo(cl_platform_id platform, cl_uint what, size_t room, void* out,
                                     size_t* needed) {
  return Call(__func__, [&] {
    auto found = Find<Platform>(platform);
    if (what == CL_PLATFORM_NAME) return AnswerText(found->name, room, out, needed);
    Require(what == CL_PLATFORM_VERSION, CL_INVALID_VALUE, "unknown question");
    AnswerText("OpenCL 1.2 fake", room, out, needed);
  });
}

FAKE_EXPORT cl_int clGetDeviceIDs(cl_platform_id platform, cl_bitfield type, cl_uint room,
                                  cl_device_id* out, cl_uint* count) {
  return Call(__func__, [&] {
    auto found = Find<Platform>(platform);
    std::vector<cl_device_id> matching;
    if ((type & DeviceType()) != 0) matching = found->devices;
    List(matching, room, out, count);
    Require(!matching.empty(), CL_DEVICE_NOT_FOUND, "no device of this type");
  });
}

FAKE_EXPORT cl_int clGetDeviceInfo(cl_device_id device, cl_uint what, size_t room, void* out,
                                   size_t* needed) {
  return Call(__func__, [&] { DeviceInfo(*Find<Device>(device), what, room, out, needed); });
}

FAKE_EXPORT cl_context clCreateContext(const cl_context_properties* properties, cl_uint count,
                                       const cl_device_id* list,
                                       void (*)(const char*, const void*, size_t, void*), void*,
                                       cl_int* error) {
  return Create(__func__, error, [&] {
    constexpr cl_context_properties kPlatform = 0x1084;
    Require(count == 1 && list != nullptr, CL_INVALID_VALUE, "one device per context is expected");
    auto context = std::make_shared<Context>();
    context->device = Find<Device>(*list);
    if (properties != nullptr && *properties == kPlatform) {
      auto own = Find<Platform>(reinterpret_cast<cl_platform_id>(properties[1]))->devices;
      bool has = std::count(own.begin(), own.end(), *list) == 1;
      Require(has, CL_INVALID_DEVICE, "the device is another platform's");
    }
    Require(!context->device->lost, CL_DEVICE_NOT_AVAILABLE, "the device is lost");
    return Add<cl_context>(context);
  });
}

FAKE_EXPORT cl_int clReleaseContext(cl_context context) {
  return Call(__func__, [&] { Release<Context>(context); });
}

FAKE_EXPORT void* clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char*) {
  Call(__func__, [&] { Find<Platform>(platform); });
  return nullptr;
}
