// SPDX-License-Identifier: Apache-2.0
// The layout of a tensor in an image2d_array of four-channel texels (TVM's texture scopes).
#pragma once

#include <dlpack/dlpack.h>

#include <string>

#include "device.h"

namespace smartmem::opencl {

// The shape of an image in texels; one texel is the tensor's innermost dimension of 4.
struct ImageShape {
  size_t width = 1, height = 1, depth = 1;
  cl_uint channel_type = 0;  // CL_FLOAT, ...
  size_t texel_bytes = 0;

  bool operator==(const ImageShape&) const = default;
  // Bytes of the elements without padding, in the tensor's own order.
  size_t bytes() const { return width * height * depth * texel_bytes; }
  // Bytes of a row of an image over a buffer on `device`, padded to its pitch.
  size_t RowBytes(const Device& device) const;
};

// Whether a memory scope is an image's; "global" and "" are a buffer's. Throws for other scopes.
bool IsTextureScope(const std::string& scope);

// Returns the shape of a tensor's image. The scope chooses the dimensions of a row:
//   global.texture         [depth..., height, width, 4]
//   global.texture-weight  [height, width..., 4]
//   global.texture-nhwc    [depth, height, width..., 4]
// Throws if the shape, the type or a limit of the device forbids it.
ImageShape ImageShapeOf(const Device& device, int ndim, const int64_t* shape, DLDataType dtype,
                        const std::string& scope);

}  // namespace smartmem::opencl
