// SPDX-License-Identifier: Apache-2.0
#include "texture.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>

namespace smartmem::opencl {
namespace {

constexpr int kChannels = 4;

struct Scope {
  const char* name;
  // The dimension that is the image's height; those before it are its depth, those after it, without
  // the texel, its width. A negative number counts from the end.
  int height_axis;
};
constexpr Scope kScopes[] = {{"global.texture", -3}, {"global.texture-weight", 0}, {"global.texture-nhwc", 1}};

struct Channel {
  uint8_t code, bits;
  cl_uint type;
};
constexpr Channel kChannelTypes[] = {
    {kDLFloat, 32, CL_FLOAT},        {kDLFloat, 16, CL_HALF_FLOAT},   {kDLInt, 8, CL_SIGNED_INT8},
    {kDLInt, 16, CL_SIGNED_INT16},   {kDLInt, 32, CL_SIGNED_INT32},   {kDLUInt, 8, CL_UNSIGNED_INT8},
    {kDLUInt, 16, CL_UNSIGNED_INT16}, {kDLUInt, 32, CL_UNSIGNED_INT32},
};

std::string ShapeText(int ndim, const int64_t* shape, DLDataType dtype) {
  std::string text = "(";
  for (int i = 0; i < ndim; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ") " + std::string(tvm::ffi::DLDataTypeToString(dtype));
}

cl_uint ChannelType(DLDataType dtype, const std::string& tensor) {
  for (const Channel& channel : kChannelTypes) {
    if (dtype.lanes == 1 && channel.code == dtype.code && channel.bits == dtype.bits) return channel.type;
  }
  TVM_FFI_THROW(TypeError) << "a texture cannot hold the tensor " << tensor
                           << ": its texels are float32, float16 or integers of 8, 16 or 32 bits; keep the tensor "
                              "in a buffer (scope global).";
  throw;
}

int HeightAxis(const std::string& scope, int ndim) {
  for (const Scope& known : kScopes) {
    if (scope == known.name) return known.height_axis < 0 ? ndim + known.height_axis : known.height_axis;
  }
  TVM_FFI_THROW(ValueError) << "the memory scope '" << scope
                            << "' is none that OpenCL has: use global, global.texture, global.texture-weight or "
                               "global.texture-nhwc.";
  throw;
}

void RequireFits(size_t size, size_t limit, const char* axis, const std::string& tensor, const Device& device) {
  if (size <= limit) return;
  TVM_FFI_THROW(ValueError) << "the texture for the tensor " << tensor << " has " << axis << " " << size << ", and "
                            << device.Describe() << " allows " << limit
                            << ": keep the tensor in a buffer (scope global), or split it.";
}

}  // namespace

size_t ImageShape::RowBytes(const Device& device) const {
  const size_t pitch = std::max<size_t>(1, device.image_pitch_pixels) * texel_bytes;
  return (width * texel_bytes + pitch - 1) / pitch * pitch;
}

bool IsTextureScope(const std::string& scope) {
  if (scope.empty() || scope == "global") return false;
  HeightAxis(scope, 0);  // throws for an unknown scope
  return true;
}

ImageShape ImageShapeOf(const Device& device, int ndim, const int64_t* shape, DLDataType dtype,
                        const std::string& scope) {
  const std::string tensor = ShapeText(ndim, shape, dtype);
  const int height_axis = HeightAxis(scope, ndim);
  if (!device.images) {
    TVM_FFI_THROW(RuntimeError) << device.Describe() << " has no images, which the tensor " << tensor
                                << " in scope " << scope << " needs: compile for a target without textures.";
  }
  if (height_axis < 0 || height_axis + 1 >= ndim || shape[ndim - 1] != kChannels) {
    TVM_FFI_THROW(ValueError) << "the tensor " << tensor << " does not fit scope " << scope
                              << ": the innermost dimension of a texture is the texel of 4, and a row dimension "
                                 "and a column dimension come before it; split the innermost dimension by 4.";
  }
  ImageShape image;
  for (int i = 0; i + 1 < ndim; ++i) {
    size_t& part = i < height_axis ? image.depth : i == height_axis ? image.height : image.width;
    part *= static_cast<size_t>(std::max<int64_t>(shape[i], 1));  // an image is never empty
  }
  image.channel_type = ChannelType(dtype, tensor);
  image.texel_bytes = kChannels * dtype.bits / 8;
  RequireFits(image.width, device.image2d_width, "width", tensor, device);
  RequireFits(image.height, device.image2d_height, "height", tensor, device);
  RequireFits(image.depth, device.image_array_depth, "depth", tensor, device);
  return image;
}

}  // namespace smartmem::opencl
