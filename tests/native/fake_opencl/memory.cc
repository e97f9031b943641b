// SPDX-License-Identifier: Apache-2.0
// Buffers and images of the fake driver: made, refused and released.
#include <cstring>

#include "world.h"

namespace fake {
namespace {

size_t ChannelBytes(cl_uint type) {
  switch (type) {
    case CL_SIGNED_INT8:
    case CL_UNSIGNED_INT8: return 1;
    case CL_SIGNED_INT16:
    case CL_UNSIGNED_INT16:
    case CL_HALF_FLOAT: return 2;
    case CL_SIGNED_INT32:
    case CL_UNSIGNED_INT32:
    case CL_FLOAT: return 4;
  }
  throw Refusal{CL_INVALID_IMAGE_FORMAT_DESCRIPTOR, "unknown channel type"};
}

void CheckSize(const char* what, size_t size, size_t limit) {
  Require(size > 0, CL_INVALID_IMAGE_DESCRIPTOR, std::string(what) + " is 0");
  Require(size <= limit, CL_INVALID_IMAGE_SIZE,
          std::string(what) + ' ' + std::to_string(size) + " is above " + std::to_string(limit));
}

std::shared_ptr<Memory> Shape(const cl_image_format& format, const cl_image_desc& desc) {
  constexpr cl_uint kImage2D = 0x10F1;
  Require(Config().images, CL_INVALID_OPERATION, "the device has no images");
  Require(format.image_channel_order == CL_RGBA, CL_IMAGE_FORMAT_NOT_SUPPORTED, "only RGBA");
  bool array = desc.image_type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
  Require(array || desc.image_type == kImage2D, CL_INVALID_IMAGE_DESCRIPTOR, "not 2D");
  Require(desc.num_mip_levels == 0 && desc.num_samples == 0, CL_INVALID_IMAGE_DESCRIPTOR, "levels");
  auto image = std::make_shared<Memory>();
  image->image = true;
  image->format = format;
  image->size[0] = desc.image_width;
  image->size[1] = desc.image_height;
  image->size[2] = array ? desc.image_array_size : 1;
  CheckSize("width", image->size[0], Config().width);
  CheckSize("height", image->size[1], Config().height);
  CheckSize("depth", image->size[2], Config().depth);
  image->pixel = 4 * ChannelBytes(format.image_channel_data_type);
  image->row = image->pixel * image->size[0];
  image->slice = image->row * image->size[1];
  return image;
}

void PlaceOnBuffer(Memory& image, const cl_image_desc& desc) {
  auto buffer = FindBuffer(desc.buffer);
  Require(Config().image_from_buffer, CL_INVALID_IMAGE_DESCRIPTOR, "no cl_khr_image2d_from_buffer");
  Require(buffer->context == image.context, CL_INVALID_CONTEXT, "the buffer is another context's");
  size_t pitch = desc.image_row_pitch;
  bool aligned = pitch >= image.row && pitch % (Config().pitch * image.pixel) == 0;
  Require(aligned, CL_INVALID_IMAGE_DESCRIPTOR,
          "row pitch " + std::to_string(pitch) + " for rows of " + std::to_string(image.row));
  image.row = pitch;
  image.slice = pitch * image.size[1];
  Require(image.slice * image.size[2] <= buffer->bytes, CL_INVALID_IMAGE_SIZE,
          "the buffer is smaller than the image");
  image.storage = buffer->storage;
}

void CheckFlags(cl_bitfield flags, const void* host) {
  Require(flags == CL_MEM_READ_WRITE || flags == 0, CL_INVALID_VALUE, "unexpected flags");
  Require(host == nullptr, CL_INVALID_HOST_PTR, "a host pointer without a flag for it");
}

}  // namespace

Storage::Storage(std::shared_ptr<Device> where, size_t bytes_needed)
    : device(std::move(where)), size(bytes_needed) {
  Require(!device->lost, CL_OUT_OF_RESOURCES, "the device is lost");
  Require(device->used + size <= Config().memory, CL_MEM_OBJECT_ALLOCATION_FAILURE,
          std::to_string(size) + " bytes more than the device has");
  bytes = std::make_unique_for_overwrite<uint8_t[]>(size);
  // What nobody wrote is noise, as on a device.
  std::memset(bytes.get(), 0xA5, size);
  device->used += size;
}

Storage::~Storage() { device->used -= size; }

std::shared_ptr<Memory> FindBuffer(cl_mem handle) {
  auto memory = Find<Memory>(handle);
  Require(!memory->image, CL_INVALID_MEM_OBJECT, "an image where a buffer is expected");
  return memory;
}

std::shared_ptr<Memory> FindImage(cl_mem handle) {
  auto memory = Find<Memory>(handle);
  Require(memory->image, CL_INVALID_MEM_OBJECT, "a buffer where an image is expected");
  return memory;
}

}  // namespace fake

using namespace fake;

FAKE_EXPORT cl_mem clCreateBuffer(cl_context context, cl_bitfield flags, size_t size, void* host,
                                  cl_int* error) {
  return Create(__func__, error, [&] {
    auto buffer = std::make_shared<Memory>();
    buffer->context = Find<Context>(context);
    CheckFlags(flags, host);
    Require(size > 0 && size <= Config().max_alloc, CL_INVALID_BUFFER_SIZE,
            std::to_string(size) + " bytes");
    buffer->storage = std::make_shared<Storage>(buffer->context->device, size);
    buffer->bytes = size;
    return Add<cl_mem>(buffer);
  });
}

FAKE_EXPORT cl_mem clCreateImage(cl_context context, cl_bitfield flags,
                                 const cl_image_format* format, const cl_image_desc* desc,
                                 void* host, cl_int* error) {
  return Create(__func__, error, [&] {
    auto owner = Find<Context>(context);
    CheckFlags(flags, host);
    Require(format != nullptr, CL_INVALID_IMAGE_FORMAT_DESCRIPTOR, "no format");
    Require(desc != nullptr, CL_INVALID_IMAGE_DESCRIPTOR, "no description");
    auto image = Shape(*format, *desc);
    image->context = owner;
    if (desc->buffer != nullptr) {
      PlaceOnBuffer(*image, *desc);
    } else {
      bool plain = desc->image_row_pitch == 0 && desc->image_slice_pitch == 0;
      Require(plain, CL_INVALID_IMAGE_DESCRIPTOR, "a pitch without memory of the host");
      size_t bytes = image->slice * image->size[2];
      image->storage = std::make_shared<Storage>(owner->device, bytes);
    }
    return Add<cl_mem>(image);
  });
}

FAKE_EXPORT cl_int clRetainMemObject(cl_mem memory) {
  return Call(__func__, [&] { ++Find<Memory>(memory)->references; });
}

FAKE_EXPORT cl_int clReleaseMemObject(cl_mem memory) {
  return Call(__func__, [&] {
    if (--Find<Memory>(memory)->references == 0) Release<Memory>(memory);
  });
}
