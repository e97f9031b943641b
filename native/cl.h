// SPDX-License-Identifier: Apache-2.0
// The part of the OpenCL 1.2 C API that this library calls: types, constants and signatures.
//
// These are declared here so that building needs no OpenCL headers; values are those of the Khronos
// specification. Functions are pointers, looked up at run time (library.h).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

typedef struct _cl_platform_id* cl_platform_id;
typedef struct _cl_device_id* cl_device_id;
typedef struct _cl_context* cl_context;
typedef struct _cl_command_queue* cl_command_queue;
typedef struct _cl_mem* cl_mem;
typedef struct _cl_program* cl_program;
typedef struct _cl_kernel* cl_kernel;
typedef struct _cl_event* cl_event;

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef cl_uint cl_bool;
typedef cl_ulong cl_bitfield;
typedef intptr_t cl_context_properties;

struct cl_image_format {
  cl_uint image_channel_order;
  cl_uint image_channel_data_type;
};

struct cl_image_desc {
  cl_uint image_type;
  size_t image_width;
  size_t image_height;
  size_t image_depth;
  size_t image_array_size;
  size_t image_row_pitch;
  size_t image_slice_pitch;
  cl_uint num_mip_levels;
  cl_uint num_samples;
  cl_mem buffer;
};

}  // extern "C"

// Error codes: ErrorName returns the name of a code as the message.
#define SMARTMEM_CL_ERRORS(X)                      \
  X(CL_SUCCESS, 0)                                 \
  X(CL_DEVICE_NOT_FOUND, -1)                       \
  X(CL_DEVICE_NOT_AVAILABLE, -2)                   \
  X(CL_COMPILER_NOT_AVAILABLE, -3)                 \
  X(CL_MEM_OBJECT_ALLOCATION_FAILURE, -4)          \
  X(CL_OUT_OF_RESOURCES, -5)                       \
  X(CL_OUT_OF_HOST_MEMORY, -6)                     \
  X(CL_PROFILING_INFO_NOT_AVAILABLE, -7)           \
  X(CL_MEM_COPY_OVERLAP, -8)                       \
  X(CL_IMAGE_FORMAT_MISMATCH, -9)                  \
  X(CL_IMAGE_FORMAT_NOT_SUPPORTED, -10)            \
  X(CL_BUILD_PROGRAM_FAILURE, -11)                 \
  X(CL_MAP_FAILURE, -12)                           \
  X(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, -14) \
  X(CL_INVALID_VALUE, -30)                         \
  X(CL_INVALID_DEVICE_TYPE, -31)                   \
  X(CL_INVALID_PLATFORM, -32)                      \
  X(CL_INVALID_DEVICE, -33)                        \
  X(CL_INVALID_CONTEXT, -34)                       \
  X(CL_INVALID_QUEUE_PROPERTIES, -35)              \
  X(CL_INVALID_COMMAND_QUEUE, -36)                 \
  X(CL_INVALID_HOST_PTR, -37)                      \
  X(CL_INVALID_MEM_OBJECT, -38)                    \
  X(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR, -39)       \
  X(CL_INVALID_IMAGE_SIZE, -40)                    \
  X(CL_INVALID_SAMPLER, -41)                       \
  X(CL_INVALID_BINARY, -42)                        \
  X(CL_INVALID_BUILD_OPTIONS, -43)                 \
  X(CL_INVALID_PROGRAM, -44)                       \
  X(CL_INVALID_PROGRAM_EXECUTABLE, -45)            \
  X(CL_INVALID_KERNEL_NAME, -46)                   \
  X(CL_INVALID_KERNEL_DEFINITION, -47)             \
  X(CL_INVALID_KERNEL, -48)                        \
  X(CL_INVALID_ARG_INDEX, -49)                     \
  X(CL_INVALID_ARG_VALUE, -50)                     \
  X(CL_INVALID_ARG_SIZE, -51)                      \
  X(CL_INVALID_KERNEL_ARGS, -52)                   \
  X(CL_INVALID_WORK_DIMENSION, -53)                \
  X(CL_INVALID_WORK_GROUP_SIZE, -54)               \
  X(CL_INVALID_WORK_ITEM_SIZE, -55)                \
  X(CL_INVALID_GLOBAL_OFFSET, -56)                 \
  X(CL_INVALID_EVENT_WAIT_LIST, -57)               \
  X(CL_INVALID_EVENT, -58)                         \
  X(CL_INVALID_OPERATION, -59)                     \
  X(CL_INVALID_BUFFER_SIZE, -61)                   \
  X(CL_INVALID_GLOBAL_WORK_SIZE, -63)              \
  X(CL_INVALID_IMAGE_DESCRIPTOR, -65)              \
  X(CL_PLATFORM_NOT_FOUND_KHR, -1001)

enum ClError : cl_int {
#define SMARTMEM_CL_ENUM(name, value) name = value,
  SMARTMEM_CL_ERRORS(SMARTMEM_CL_ENUM)
#undef SMARTMEM_CL_ENUM
};

enum ClConstant : cl_uint {
  CL_FALSE = 0,
  CL_TRUE = 1,

  CL_PLATFORM_VERSION = 0x0901,
  CL_PLATFORM_NAME = 0x0902,

  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005,
  CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
  CL_DEVICE_IMAGE2D_MAX_WIDTH = 0x1011,
  CL_DEVICE_IMAGE2D_MAX_HEIGHT = 0x1012,
  CL_DEVICE_IMAGE_SUPPORT = 0x1016,
  CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E,
  CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
  CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
  CL_DEVICE_AVAILABLE = 0x1027,
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_VENDOR = 0x102C,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_VERSION = 0x102F,
  CL_DEVICE_EXTENSIONS = 0x1030,
  CL_DEVICE_IMAGE_MAX_ARRAY_SIZE = 0x1041,
  CL_DEVICE_IMAGE_PITCH_ALIGNMENT = 0x104A,           // OpenCL 2.0 or cl_khr_image2d_from_buffer; pixels
  CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT = 0x104B,    // likewise; pixels
  CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE = 0x1067,  // OpenCL 3.0
  CL_DEVICE_WARP_SIZE_NV = 0x4003,                    // cl_nv_device_attribute_query

  CL_DEVICE_TYPE_CPU = 1 << 1,
  CL_DEVICE_TYPE_GPU = 1 << 2,
  CL_DEVICE_TYPE_ACCELERATOR = 1 << 3,
  CL_DEVICE_TYPE_ALL = 0xFFFFFFFF,

  CL_QUEUE_PROFILING_ENABLE = 1 << 1,

  CL_MEM_READ_WRITE = 1 << 0,
  CL_MEM_OBJECT_IMAGE2D_ARRAY = 0x10F3,

  CL_RGBA = 0x10B5,
  CL_SIGNED_INT8 = 0x10D7,
  CL_SIGNED_INT16 = 0x10D8,
  CL_SIGNED_INT32 = 0x10D9,
  CL_UNSIGNED_INT8 = 0x10DA,
  CL_UNSIGNED_INT16 = 0x10DB,
  CL_UNSIGNED_INT32 = 0x10DC,
  CL_HALF_FLOAT = 0x10DD,
  CL_FLOAT = 0x10DE,

  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
  CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
  CL_PROFILING_COMMAND_START = 0x1282,
  CL_PROFILING_COMMAND_END = 0x1283,
};

// Every function that is called: X(index, type, name, parameters). All return cl_int except the
// clCreate functions, which return the object and report through errcode_ret, and the one that looks
// functions of extensions up. The index is the position in the dispatch table of cl_khr_icd; every
// object begins with the address of that table.
#define SMARTMEM_CL_FUNCTIONS(X)                                                                  \
  X(0, cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id*, cl_uint*))                            \
  X(1, cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void*, size_t*))              \
  X(2, cl_int, clGetDeviceIDs,                                                                    \
    (cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*))                              \
  X(3, cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void*, size_t*))                  \
  X(4, cl_context, clCreateContext,                                                               \
    (const cl_context_properties*, cl_uint, const cl_device_id*,                                  \
     void (*)(const char*, const void*, size_t, void*), void*, cl_int*))                          \
  X(7, cl_int, clReleaseContext, (cl_context))                                                    \
  X(9, cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bitfield, cl_int*))  \
  X(11, cl_int, clReleaseCommandQueue, (cl_command_queue))                                        \
  X(46, cl_int, clFlush, (cl_command_queue))                                                      \
  X(47, cl_int, clFinish, (cl_command_queue))                                                     \
  X(14, cl_mem, clCreateBuffer, (cl_context, cl_bitfield, size_t, void*, cl_int*))                \
  X(96, cl_mem, clCreateImage,                                                                    \
    (cl_context, cl_bitfield, const cl_image_format*, const cl_image_desc*, void*, cl_int*))      \
  X(17, cl_int, clRetainMemObject, (cl_mem))                                                      \
  X(18, cl_int, clReleaseMemObject, (cl_mem))                                                     \
  X(48, cl_int, clEnqueueReadBuffer,                                                              \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*,          \
     cl_event*))                                                                                  \
  X(49, cl_int, clEnqueueWriteBuffer,                                                             \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*,    \
     cl_event*))                                                                                  \
  X(50, cl_int, clEnqueueCopyBuffer,                                                              \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*,          \
     cl_event*))                                                                                  \
  X(51, cl_int, clEnqueueReadImage,                                                               \
    (cl_command_queue, cl_mem, cl_bool, const size_t*, const size_t*, size_t, size_t, void*,      \
     cl_uint, const cl_event*, cl_event*))                                                        \
  X(52, cl_int, clEnqueueWriteImage,                                                              \
    (cl_command_queue, cl_mem, cl_bool, const size_t*, const size_t*, size_t, size_t,             \
     const void*, cl_uint, const cl_event*, cl_event*))                                           \
  X(53, cl_int, clEnqueueCopyImage,                                                               \
    (cl_command_queue, cl_mem, cl_mem, const size_t*, const size_t*, const size_t*, cl_uint,      \
     const cl_event*, cl_event*))                                                                 \
  X(54, cl_int, clEnqueueCopyImageToBuffer,                                                       \
    (cl_command_queue, cl_mem, cl_mem, const size_t*, const size_t*, size_t, cl_uint,             \
     const cl_event*, cl_event*))                                                                 \
  X(55, cl_int, clEnqueueCopyBufferToImage,                                                       \
    (cl_command_queue, cl_mem, cl_mem, size_t, const size_t*, const size_t*, cl_uint,             \
     const cl_event*, cl_event*))                                                                 \
  X(59, cl_int, clEnqueueNDRangeKernel,                                                           \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint,  \
     const cl_event*, cl_event*))                                                                 \
  X(107, void*, clGetExtensionFunctionAddressForPlatform, (cl_platform_id, const char*))          \
  X(105, cl_int, clEnqueueMarkerWithWaitList,                                                     \
    (cl_command_queue, cl_uint, const cl_event*, cl_event*))                                      \
  X(106, cl_int, clEnqueueBarrierWithWaitList,                                                    \
    (cl_command_queue, cl_uint, const cl_event*, cl_event*))                                      \
  X(26, cl_program, clCreateProgramWithSource,                                                    \
    (cl_context, cl_uint, const char**, const size_t*, cl_int*))                                  \
  X(27, cl_program, clCreateProgramWithBinary,                                                    \
    (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*,     \
     cl_int*))                                                                                    \
  X(30, cl_int, clBuildProgram,                                                                   \
    (cl_program, cl_uint, const cl_device_id*, const char*, void (*)(cl_program, void*), void*))  \
  X(32, cl_int, clGetProgramInfo, (cl_program, cl_uint, size_t, void*, size_t*))                  \
  X(33, cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))\
  X(29, cl_int, clReleaseProgram, (cl_program))                                                   \
  X(34, cl_kernel, clCreateKernel, (cl_program, const char*, cl_int*))                            \
  X(38, cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void*))                        \
  X(40, cl_int, clGetKernelWorkGroupInfo,                                                         \
    (cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*))                                   \
  X(37, cl_int, clReleaseKernel, (cl_kernel))                                                     \
  X(41, cl_int, clWaitForEvents, (cl_uint, const cl_event*))                                      \
  X(45, cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void*, size_t*))             \
  X(44, cl_int, clReleaseEvent, (cl_event))
