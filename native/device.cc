// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <pthread.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "environment.h"
#include "pocl_cpu.h"

namespace smartmem::opencl {
namespace {

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool IsNumber(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

// Removes the terminating zero of a driver's string, and the blanks that some drivers put around it.
std::string Trimmed(std::string text) {
  text.erase(std::find(text.begin(), text.end(), '\0'), text.end());
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::string PlatformText(cl_platform_id platform, cl_uint what) {
  size_t bytes = 0;
  if (Cl().clGetPlatformInfo(platform, what, 0, nullptr, &bytes) != CL_SUCCESS) return "";
  std::string text(bytes, '\0');
  Check(Cl().clGetPlatformInfo(platform, what, bytes, text.data(), nullptr), "clGetPlatformInfo");
  return Trimmed(text);
}

std::string DeviceText(cl_device_id device, cl_uint what) {
  size_t bytes = 0;
  if (Cl().clGetDeviceInfo(device, what, 0, nullptr, &bytes) != CL_SUCCESS) return "";
  std::string text(bytes, '\0');
  Check(Cl().clGetDeviceInfo(device, what, bytes, text.data(), nullptr), "clGetDeviceInfo");
  return Trimmed(text);
}

// Returns a number of the device, or `fallback` if the driver does not have it.
template <typename T>
T DeviceNumber(cl_device_id device, cl_uint what, T fallback = 0) {
  T value = fallback;
  return Cl().clGetDeviceInfo(device, what, sizeof(T), &value, nullptr) == CL_SUCCESS ? value : fallback;
}

cl_uint WarpSize(const Device& device) {
  if (device.HasExtension("cl_nv_device_attribute_query")) {
    return DeviceNumber<cl_uint>(device.id, CL_DEVICE_WARP_SIZE_NV, 1);
  }
  return std::max<size_t>(1, DeviceNumber<size_t>(device.id, CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, 1));
}

void ReadImageLimits(Device* device) {
  device->images = DeviceNumber<cl_uint>(device->id, CL_DEVICE_IMAGE_SUPPORT) != 0;
  if (!device->images) return;
  device->image2d_width = DeviceNumber<size_t>(device->id, CL_DEVICE_IMAGE2D_MAX_WIDTH);
  device->image2d_height = DeviceNumber<size_t>(device->id, CL_DEVICE_IMAGE2D_MAX_HEIGHT);
  device->image_array_depth = DeviceNumber<size_t>(device->id, CL_DEVICE_IMAGE_MAX_ARRAY_SIZE);
  device->image_pitch_pixels = DeviceNumber<cl_uint>(device->id, CL_DEVICE_IMAGE_PITCH_ALIGNMENT);
  device->image_from_buffer = device->HasExtension("cl_khr_image2d_from_buffer") &&
                              device->image_pitch_pixels != 0 && Environment("SMARTMEM_OPENCL_SHARED_IMAGES") != "0";
}

std::unique_ptr<Device> ReadDevice(cl_platform_id platform, cl_device_id id) {
  auto device = std::make_unique<Device>();
  device->platform = platform;
  device->id = id;
  device->name = DeviceText(id, CL_DEVICE_NAME);
  device->vendor = DeviceText(id, CL_DEVICE_VENDOR);
  device->version = DeviceText(id, CL_DEVICE_VERSION);
  device->driver = DeviceText(id, CL_DRIVER_VERSION);
  device->extensions = DeviceText(id, CL_DEVICE_EXTENSIONS);
  device->platform_name = PlatformText(platform, CL_PLATFORM_NAME);
  device->platform_version = PlatformText(platform, CL_PLATFORM_VERSION);
  device->type = DeviceNumber<cl_ulong>(id, CL_DEVICE_TYPE);
  device->compute_units = DeviceNumber<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS);
  device->clock_mhz = DeviceNumber<cl_uint>(id, CL_DEVICE_MAX_CLOCK_FREQUENCY);
  device->max_work_group_size = DeviceNumber<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE, 1);
  Cl().clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof(device->max_work_item_sizes),
                       device->max_work_item_sizes, nullptr);
  device->local_bytes = DeviceNumber<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE);
  device->global_bytes = DeviceNumber<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE);
  device->max_alloc_bytes = DeviceNumber<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  device->cache_bytes = DeviceNumber<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
  device->warp_size = WarpSize(*device);
  ReadImageLimits(device.get());
  NameCpu(device.get());
  return device;
}

using DeviceList = std::vector<std::unique_ptr<Device>>;

int Rank(const Device& device) {
  if (device.type & CL_DEVICE_TYPE_GPU) return 0;
  return device.type & CL_DEVICE_TYPE_ACCELERATOR ? 1 : 2;
}

// Returns every device of every platform, and the number of its platform.
DeviceList AllDevices(std::vector<int>* platform_numbers) {
  cl_uint count = 0;
  const cl_int code = Cl().clGetPlatformIDs(0, nullptr, &count);
  if (code != CL_SUCCESS || count == 0) return {};  // a loader without any driver returns an error
  std::vector<cl_platform_id> platforms(count);
  Check(Cl().clGetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");
  DeviceList devices;
  for (size_t p = 0; p < platforms.size(); ++p) {
    if (Cl().clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) continue;
    std::vector<cl_device_id> ids(count);
    if (Cl().clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr) != CL_SUCCESS) continue;
    for (cl_device_id id : ids) {
      devices.push_back(ReadDevice(platforms[p], id));
      platform_numbers->push_back(static_cast<int>(p));
    }
  }
  return devices;
}

bool Matches(const std::string& choice, int number, const std::string& name) {
  if (choice.empty()) return true;
  return IsNumber(choice) ? std::to_string(number) == choice : Lower(name).find(Lower(choice)) != std::string::npos;
}

std::string ListOf(const DeviceList& devices) {
  std::string text;
  for (const auto& device : devices) {
    text += (text.empty() ? "" : ", ") + device->name + " on " + device->platform_name;
  }
  return text;
}

// Returns the devices that match; numbers count the devices of the chosen platforms, GPUs first.
DeviceList ChosenDevices(const std::string& platform, const std::string& device) {
  std::vector<int> numbers;
  DeviceList all = AllDevices(&numbers);
  if (all.empty()) {
    TVM_FFI_THROW(RuntimeError) << "the OpenCL library finds no device: install a driver; " << kInstallCpuDriver;
  }
  const std::string there_is = ListOf(all);
  DeviceList on_platform;
  for (size_t i = 0; i < all.size(); ++i) {
    if (Matches(platform, numbers[i], all[i]->platform_name)) on_platform.push_back(std::move(all[i]));
  }
  std::stable_sort(on_platform.begin(), on_platform.end(),
                   [](const auto& a, const auto& b) { return Rank(*a) < Rank(*b); });
  DeviceList chosen;
  for (size_t i = 0; i < on_platform.size(); ++i) {
    const bool by_type = Lower(device) == on_platform[i]->TypeName();
    if (by_type || Matches(device, static_cast<int>(i), on_platform[i]->name)) {
      chosen.push_back(std::move(on_platform[i]));
      chosen.back()->index = static_cast<int>(chosen.size()) - 1;
    }
  }
  if (chosen.empty()) {
    TVM_FFI_THROW(ValueError) << "no OpenCL device matches platform '" << platform << "' and device '" << device
                              << "' (there is: " << there_is
                              << "): correct SMARTMEM_OPENCL_PLATFORM and SMARTMEM_OPENCL_DEVICE, or the call of "
                                 "smartmem_tvm.runtime.opencl.select.";
  }
  return chosen;
}

std::mutex choice_mutex;
DeviceList* chosen_devices = nullptr;  // never destroyed, see library.cc

}  // namespace

bool Device::HasExtension(const std::string& extension) const {
  return (" " + extensions + " ").find(" " + extension + " ") != std::string::npos;
}

const char* Device::TypeName() const {
  static constexpr const char* names[] = {"gpu", "accelerator", "cpu"};
  return names[Rank(*this)];
}

std::string Device::Describe() const { return "opencl:" + std::to_string(index) + " (" + name + ")"; }

void Device::Require() const {
  if (forked) [[unlikely]] {
    TVM_FFI_THROW(RuntimeError) << "this process was forked after the first use of OpenCL device " << Describe()
                                << ", which no driver survives: start processes with multiprocessing's method "
                                   "\"spawn\", or before the first use.";
  }
  if (lost) [[unlikely]] {
    TVM_FFI_THROW(RuntimeError) << "OpenCL device " << Describe()
                                << " was lost earlier: what it held is gone; use another device, or start the "
                                   "process anew.";
  }
}

bool Device::IsGone(cl_int code) const {
  if (code == CL_DEVICE_NOT_AVAILABLE || code == CL_INVALID_COMMAND_QUEUE || code == CL_INVALID_CONTEXT) return true;
  // Allocations have no error code for a lost device: they report no memory instead.
  const bool no_memory = code == CL_OUT_OF_RESOURCES || code == CL_MEM_OBJECT_ALLOCATION_FAILURE;
  return no_memory && DeviceNumber<cl_uint>(id, CL_DEVICE_AVAILABLE) == 0;
}

void Device::Check(cl_int code, const std::string& call) {
  if (code == CL_SUCCESS) return;
  if (IsGone(code)) {
    lost = true;
    TVM_FFI_THROW(RuntimeError) << "OpenCL device " << Describe() << " was lost: " << call << " gave "
                                << ErrorName(code)
                                << "; what it held is gone; use another device, or start the process anew.";
  }
  opencl::Check(code, call + " on " + Describe());
}

DeviceList& Devices() {
  std::lock_guard<std::mutex> lock(choice_mutex);
  if (chosen_devices == nullptr) {
    chosen_devices = new DeviceList(
        ChosenDevices(Environment("SMARTMEM_OPENCL_PLATFORM"), Environment("SMARTMEM_OPENCL_DEVICE")));
  }
  return *chosen_devices;
}

Device& GetDevice(int index) {
  DeviceList& devices = Devices();
  if (index < 0 || static_cast<size_t>(index) >= devices.size()) {
    TVM_FFI_THROW(ValueError) << "there is no device opencl:" << index << ": this machine's OpenCL devices are "
                              << ListOf(devices) << ", numbered from 0.";
  }
  Device& device = *devices[index];
  std::call_once(device.context_once_, [&device] {
    static const int watched = pthread_atfork(nullptr, nullptr, [] { forked = true; });
    Check(watched == 0 ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, "pthread_atfork");
    cl_int code = CL_SUCCESS;
    const cl_context_properties properties[] = {0x1084 /* CL_CONTEXT_PLATFORM */,
                                                reinterpret_cast<cl_context_properties>(device.platform), 0};
    device.owned_context_ = Context(Cl().clCreateContext(properties, 1, &device.id, nullptr, nullptr, &code));
    device.Check(code, "clCreateContext");
    device.context = device.owned_context_.get();
  });
  return device;
}

std::string DeviceProblem() {
  if (!LibraryProblem().empty()) return LibraryProblem();
  try {
    Devices();
  } catch (const tvm::ffi::Error& error) {
    return std::string(error.message().data(), error.message().size());
  }
  return "";
}

int Select(const std::string& platform, const std::string& device) {
  DeviceList chosen = ChosenDevices(platform, device);
  std::lock_guard<std::mutex> lock(choice_mutex);
  if (chosen_devices != nullptr) {
    for (const auto& used : *chosen_devices) {
      if (used->context != nullptr) {
        TVM_FFI_THROW(RuntimeError) << "OpenCL devices are chosen before the first use, and " << used->Describe()
                                    << " is in use: call select right after the import.";
      }
    }
  }
  // The old list is not deleted, since another thread may be reading it.
  chosen_devices = new DeviceList(std::move(chosen));
  return static_cast<int>(chosen_devices->size());
}

}  // namespace smartmem::opencl
