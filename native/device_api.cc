// SPDX-License-Identifier: Apache-2.0
// TVM's DeviceAPI for OpenCL: every virtual function calls the file of its concept.
#include "device_api.h"

#include <tvm/ffi/container/tensor.h>

#include <cmath>

#include "copy.h"
#include "memory.h"
#include "register.h"

namespace smartmem::opencl {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Optional;
using tvm::ffi::String;
using tvm::runtime::DeviceAttrKind;

thread_local int current_device = 0;

// "OpenCL 3.0 PoCL ..." -> "3.0"
std::string VersionNumber(const std::string& version) {
  const size_t begin = version.find(' ') + 1;
  return version.substr(begin, version.find(' ', begin) - begin);
}

std::string ScopeOf(const Optional<String>& scope) { return scope.has_value() ? std::string(*scope) : "global"; }

class ClDeviceApi final : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(DLDevice device) final { current_device = device.device_id; }

  void GetAttr(DLDevice tvm_device, DeviceAttrKind kind, Any* result) final {
    if (kind == tvm::runtime::kExist) {
      const bool exists = DeviceProblem().empty() && tvm_device.device_id >= 0 &&
                          static_cast<size_t>(tvm_device.device_id) < Devices().size();
      *result = static_cast<int>(exists);
      return;
    }
    Attribute(GetDevice(tvm_device.device_id), kind, result);
  }

  size_t GetDataSize(const DLTensor& tensor, Optional<String> scope) final {
    if (!IsTextureScope(ScopeOf(scope))) return tvm::ffi::GetDataSize(tensor);
    const Device& device = GetDevice(tensor.device.device_id);
    const ImageShape image = ImageShapeOf(device, tensor.ndim, tensor.shape, tensor.dtype, ScopeOf(scope));
    return image.RowBytes(device) * image.height * image.depth;
  }

  void* AllocDataSpace(DLDevice device, size_t bytes, size_t, DLDataType) final {
    return Memory::NewBuffer(GetDevice(device.device_id), bytes).release();
  }

  void* AllocDataSpace(DLDevice tvm_device, int ndim, const int64_t* shape, DLDataType dtype,
                       Optional<String> scope) final {
    return Allocate(tvm_device.device_id, ndim, shape, dtype, ScopeOf(scope)).release();
  }

  void FreeDataSpace(DLDevice, void* data) final { delete static_cast<Memory*>(data); }

  void CopyDataFromTo(DLTensor* from, DLTensor* to, TVMStreamHandle stream) final { Copy(*from, *to, stream); }

  TVMStreamHandle CreateStream(DLDevice device) final { return new Stream(GetDevice(device.device_id)); }

  void FreeStream(DLDevice device, TVMStreamHandle stream) final {
    // A freed stream must not stay this thread's current one.
    if (GetCurrentStream(device) == stream) SetStream(device, nullptr);
    static_cast<Stream*>(stream)->Close();
  }

  void StreamSync(DLDevice device, TVMStreamHandle stream) final { GetStream(device.device_id, stream).Finish(); }

  void SyncStreamFromTo(DLDevice device, TVMStreamHandle from, TVMStreamHandle to) final {
    GetStream(device.device_id, from).Before(GetStream(device.device_id, to));
  }

 private:
  static void Attribute(const Device& device, DeviceAttrKind kind, Any* result) {
    switch (kind) {
      case tvm::runtime::kMaxThreadsPerBlock:
        *result = static_cast<int64_t>(device.max_work_group_size);
        break;
      case tvm::runtime::kWarpSize:
        *result = static_cast<int64_t>(device.warp_size);
        break;
      case tvm::runtime::kMaxSharedMemoryPerBlock:
        *result = static_cast<int64_t>(device.local_bytes);
        break;
      case tvm::runtime::kComputeVersion:
        *result = VersionNumber(device.version);
        break;
      case tvm::runtime::kDeviceName:
        *result = device.name;
        break;
      case tvm::runtime::kMaxClockRate:
        *result = static_cast<int64_t>(device.clock_mhz) * 1000;  // kHz
        break;
      case tvm::runtime::kMultiProcessorCount:
        *result = static_cast<int64_t>(device.compute_units);
        break;
      case tvm::runtime::kMaxThreadDimensions: {
        const size_t* sizes = device.max_work_item_sizes;  // a JSON list, as TVM's Python reads it
        *result = "[" + std::to_string(sizes[0]) + ", " + std::to_string(sizes[1]) + ", " +
                  std::to_string(sizes[2]) + "]";
        break;
      }
      case tvm::runtime::kApiVersion:
        *result = static_cast<int64_t>(120);  // OpenCL 1.2, the version that cl.h declares
        break;
      case tvm::runtime::kDriverVersion:
        *result = device.driver;
        break;
      case tvm::runtime::kL2CacheSizeBytes:
        *result = static_cast<int64_t>(device.cache_bytes);
        break;
      case tvm::runtime::kTotalGlobalMemory:
        *result = static_cast<int64_t>(device.global_bytes);
        break;
      case tvm::runtime::kImagePitchAlignment:
        *result = static_cast<int64_t>(device.image_pitch_pixels);
        break;
      default:
        break;  // OpenCL has no such attribute: TVM returns None
    }
  }
};

}  // namespace

int CurrentDevice() { return current_device; }

std::unique_ptr<Memory> Allocate(int device_index, int ndim, const int64_t* shape, DLDataType dtype,
                                 const std::string& scope) {
  Device& device = GetDevice(device_index);
  if (IsTextureScope(scope)) return Memory::NewImage(device, ImageShapeOf(device, ndim, shape, dtype, scope));
  // In floating point, which no number of elements overflows.
  long double bytes = static_cast<long double>(dtype.bits) * dtype.lanes / 8;
  for (int i = 0; i < ndim; ++i) bytes *= static_cast<long double>(shape[i]);
  if (bytes > static_cast<long double>(device.global_bytes)) {
    TVM_FFI_THROW(RuntimeError) << "a tensor of " << static_cast<double>(bytes) << " bytes does not fit the "
                                << device.global_bytes << " bytes of OpenCL device " << device.Describe()
                                << ": use a smaller batch, or another device.";
  }
  return Memory::NewBuffer(device, static_cast<size_t>(std::ceil(bytes)));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef().def_packed("device_api.opencl", [](tvm::ffi::PackedArgs, Any* result) {
    static auto* api = new ClDeviceApi();  // never destroyed, see library.cc
    *result = static_cast<void*>(static_cast<tvm::runtime::DeviceAPI*>(api));
  });
}

}  // namespace smartmem::opencl
