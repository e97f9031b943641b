// SPDX-License-Identifier: Apache-2.0
// Copies of the fake driver: every byte is moved, every region is checked.
#include <cstring>

#include "world.h"

namespace fake {
namespace {

using MemoryRef = std::shared_ptr<Memory>;

// Where a box of bytes lies: its first byte and its pitches.
struct Box {
  uint8_t* data;
  size_t row, slice;
};

void CheckRange(const Memory& buffer, size_t offset, size_t size) {
  Require(size > 0, CL_INVALID_VALUE, "0 bytes");
  bool inside = offset <= buffer.bytes && size <= buffer.bytes - offset;
  Require(inside, CL_INVALID_VALUE,
          std::to_string(size) + " bytes at " + std::to_string(offset) + " of a buffer of " +
              std::to_string(buffer.bytes));
}

void CheckRegion(const Memory& image, const size_t* origin, const size_t* region) {
  Require(origin != nullptr && region != nullptr, CL_INVALID_VALUE, "no region");
  for (int i = 0; i < 3; ++i) {
    bool inside = region[i] > 0 && origin[i] <= image.size[i] &&
                  region[i] <= image.size[i] - origin[i];
    Require(inside, CL_INVALID_VALUE, "a region outside of the image");
  }
}

void CheckContext(cl_command_queue queue, const Memory& memory) {
  bool same = Find<Queue>(queue)->context == memory.context;
  Require(same, CL_INVALID_CONTEXT, "the memory is another context's");
}

Box ImageBox(const Memory& image, const size_t* origin) {
  size_t offset = origin[0] * image.pixel + origin[1] * image.row + origin[2] * image.slice;
  return {image.data() + offset, image.row, image.slice};
}

// Memory of the host: pitches of 0 mean that rows and slices follow each other.
Box HostBox(const Memory& image, void* host, const size_t* region, size_t row, size_t slice) {
  size_t width = region[0] * image.pixel;
  Require(host != nullptr, CL_INVALID_VALUE, "no memory of the host");
  Require(row == 0 || row >= width, CL_INVALID_VALUE, "the row pitch is too small");
  if (row == 0) row = width;
  Require(slice == 0 || slice >= row * region[1], CL_INVALID_VALUE, "the slice pitch is too small");
  return {static_cast<uint8_t*>(host), row, slice == 0 ? row * region[1] : slice};
}

Box BufferBox(const Memory& buffer, const Memory& image, size_t offset, const size_t* region) {
  size_t width = region[0] * image.pixel;
  CheckRange(buffer, offset, width * region[1] * region[2]);
  return {buffer.data() + offset, width, width * region[1]};
}

void CopyBox(Box to, Box from, size_t width, size_t rows, size_t slices) {
  for (size_t z = 0; z < slices; ++z) {
    for (size_t y = 0; y < rows; ++y) {
      std::memcpy(to.data + z * to.slice + y * to.row, from.data + z * from.slice + y * from.row,
                  width);
    }
  }
}

// `keep` holds what the command touches until it has run.
std::function<void()> Copy(Box to, Box from, const Memory& image, const size_t* region,
                           std::vector<MemoryRef> keep) {
  size_t width = region[0] * image.pixel, rows = region[1], slices = region[2];
  return [=, keep = std::move(keep)] { CopyBox(to, from, width, rows, slices); };
}

}  // namespace
}  // namespace fake

using namespace fake;

FAKE_EXPORT cl_int clEnqueueReadBuffer(cl_command_queue queue, cl_mem from, cl_bool blocking,
                                       size_t offset, size_t size, void* host, cl_uint waits,
                                       const cl_event* wait_list, cl_event* event) {
  return Call(__func__, [&] {
    auto buffer = FindBuffer(from);
    CheckContext(queue, *buffer);
    CheckRange(*buffer, offset, size);
    Require(host != nullptr, CL_INVALID_VALUE, "no memory of the host");
    Submit(queue, blocking, waits, wait_list, event, kCopyNs,
           [=] { std::memcpy(host, buffer->data() + offset, size); });
  });
}

FAKE_EXPORT cl_int clEnqueueWriteBuffer(cl_command_queue queue, cl_mem to, cl_bool blocking,
                                        size_t offset, size_t size, const void* host,
                                        cl_uint waits, const cl_event* wait_list,
                                        cl_event* event) {
  return Call(__func__, [&] {
    auto buffer = FindBuffer(to);
    CheckContext(queue, *buffer);
    CheckRange(*buffer, offset, size);
    Require(host != nullptr, CL_INVALID_VALUE, "no memory of the host");
    Submit(queue, blocking, waits, wait_list, event, kCopyNs,
           [=] { std::memcpy(buffer->data() + offset, host, size); });
  });
}

FAKE_EXPORT cl_int clEnqueueCopyBuffer(cl_command_queue queue, cl_mem from, cl_mem to,
                                       size_t from_offset, size_t to_offset, size_t size,
                                       cl_uint waits, const cl_event* wait_list,
                                       cl_event* event) {
  return Call(__func__, [&] {
    auto source = FindBuffer(from), target = FindBuffer(to);
    CheckContext(queue, *source);
    CheckContext(queue, *target);
    CheckRange(*source, from_offset, size);
    CheckRange(*target, to_offset, size);
    const size_t begin = from_offset, there = to_offset;
    bool apart = source->storage != target->storage || begin + size <= there ||
                 there + size <= begin;
    Require(apart, CL_MEM_COPY_OVERLAP, "source and target overlap");
    Submit(queue, false, waits, wait_list, event, kCopyNs, [=] {
      std::memcpy(target->data() + to_offset,
                  source->data() + from_offset, size);
    });
  });
}

FAKE_EXPORT cl_int clEnqueueReadImage(cl_command_queue queue, cl_mem from, cl_bool blocking,
                                      const size_t* origin, const size_t* region, size_t row,
                                      size_t slice, void* host, cl_uint waits,
                                      const cl_event* wait_list, cl_event* event) {
  return Call(__func__, [&] {
    auto image = FindImage(from);
    CheckContext(queue, *image);
    CheckRegion(*image, origin, region);
    Box to = HostBox(*image, host, region, row, slice);
    Submit(queue, blocking, waits, wait_list, event, kCopyNs,
           Copy(to, ImageBox(*image, origin), *image, region, {image}));
  });
}

FAKE_EXPORT cl_int clEnqueueWriteImage(cl_command_queue queue, cl_mem to, cl_bool blocking,
                                       const size_t* origin, const size_t* region, size_t row,
                                       size_t slice, const void* host, cl_uint waits,
                                       const cl_event* wait_list, cl_event* event) {
  return Call(__func__, [&] {
    auto image = FindImage(to);
    CheckContext(queue, *image);
    CheckRegion(*image, origin, region);
    Box from = HostBox(*image, const_cast<void*>(host), region, row, slice);
    Submit(queue, blocking, waits, wait_list, event, kCopyNs,
           Copy(ImageBox(*image, origin), from, *image, region, {image}));
  });
}

FAKE_EXPORT cl_int clEnqueueCopyImage(cl_command_queue queue, cl_mem from, cl_mem to,
                                      const size_t* from_origin, const size_t* to_origin,
                                      const size_t* region, cl_uint waits,
                                      const cl_event* wait_list, cl_event* event) {
  return Call(__func__, [&] {
    auto source = FindImage(from), target = FindImage(to);
    CheckContext(queue, *source);
    CheckContext(queue, *target);
    bool same = std::memcmp(&source->format, &target->format, sizeof(cl_image_format)) == 0;
    Require(same, CL_IMAGE_FORMAT_MISMATCH, "the images' formats differ");
    CheckRegion(*source, from_origin, region);
    CheckRegion(*target, to_origin, region);
    Require(source->storage != target->storage, CL_MEM_COPY_OVERLAP, "one memory");
    Submit(queue, false, waits, wait_list, event, kCopyNs,
           Copy(ImageBox(*target, to_origin), ImageBox(*source, from_origin), *source, region,
                {source, target}));
  });
}

FAKE_EXPORT cl_int clEnqueueCopyImageToBuffer(cl_command_queue queue, cl_mem from, cl_mem to,
                                              const size_t* origin, const size_t* region,
                                              size_t offset, cl_uint waits,
                                              const cl_event* wait_list, cl_event* event) {
  return Call(__func__, [&] {
    auto image = FindImage(from), buffer = FindBuffer(to);
    CheckContext(queue, *image);
    CheckContext(queue, *buffer);
    CheckRegion(*image, origin, region);
    Require(image->storage != buffer->storage, CL_MEM_COPY_OVERLAP, "one memory");
    Box target = BufferBox(*buffer, *image, offset, region);
    Submit(queue, false, waits, wait_list, event, kCopyNs,
           Copy(target, ImageBox(*image, origin), *image, region, {image, buffer}));
  });
}

FAKE_EXPORT cl_int clEnqueueCopyBufferToImage(cl_command_queue queue, cl_mem from, cl_mem to,
                                              size_t offset, const size_t* origin,
                                              const size_t* region, cl_uint waits,
                                              const cl_event* wait_list, cl_event* event) {
  return Call(__func__, [&] {
    auto buffer = FindBuffer(from), image = FindImage(to);
    CheckContext(queue, *image);
    CheckContext(queue, *buffer);
    CheckRegion(*image, origin, region);
    Require(image->storage != buffer->storage, CL_MEM_COPY_OVERLAP, "one memory");
    Box source = BufferBox(*buffer, *image, offset, region);
    Submit(queue, false, waits, wait_list, event, kCopyNs,
           Copy(ImageBox(*image, origin), source, *image, region, {image, buffer}));
  });
}
