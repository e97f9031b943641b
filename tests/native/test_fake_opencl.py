# SPDX-License-Identifier: Apache-2.0
"""The fake driver is strict: a test that runs on it would notice what the library does wrong."""

import ctypes

from fake_driver import run_with_fake
from opencl_child import fake

SOURCE = b"__kernel void copy_it(__global float* restrict dst, __global const float* restrict src, int n) {}"
INVALID_VALUE, INVALID_MEM_OBJECT, INVALID_DESCRIPTOR, INVALID_ARG_SIZE = -30, -38, -65, -51


class Description(ctypes.Structure):
    """``cl_image_desc``"""

    _fields_ = [
        ("type", ctypes.c_uint32),
        *((name, ctypes.c_size_t) for name in ("width", "height", "depth", "layers", "row_pitch", "slice_pitch")),
        ("levels", ctypes.c_uint32),
        ("samples", ctypes.c_uint32),
        ("buffer", ctypes.c_void_p),
    ]


class Session:
    """One context and one queue; `make` and `call` return the object or the error code."""

    def __init__(self) -> None:
        self.cl = fake().library
        platform, device = ctypes.c_void_p(), ctypes.c_void_p()
        self.cl.clGetPlatformIDs(1, ctypes.byref(platform), None)
        self.cl.clGetDeviceIDs(platform, ctypes.c_uint64(0xFFFFFFFF), 1, ctypes.byref(device), None)
        self.device = device
        self.context = self.make("clCreateContext", None, 1, ctypes.byref(device), None, None)
        self.queue = self.make("clCreateCommandQueue", self.context, device, ctypes.c_uint64(0))

    def make(self, name, *args):
        function, error = getattr(self.cl, name), ctypes.c_int32()
        function.restype = ctypes.c_void_p
        handle = function(*args, ctypes.byref(error))
        return error.value if handle is None else ctypes.c_void_p(handle)

    def buffer(self, size):
        return self.make("clCreateBuffer", self.context, ctypes.c_uint64(1), ctypes.c_size_t(size), None)

    def image(self, width, height, buffer=None, pitch=0):
        desc = Description(0x10F3, width, height, 0, 1, pitch, 0, 0, 0, buffer)
        rgba_float = (ctypes.c_uint32 * 2)(0x10B5, 0x10DE)
        return self.make("clCreateImage", self.context, ctypes.c_uint64(1), rgba_float, ctypes.byref(desc), None)

    def copy(self, what, memory, host, *rest):
        """Write or read a whole buffer or, with the size in pixels, an image."""
        size = ctypes.c_size_t(ctypes.sizeof(host))
        if not rest:
            args = [ctypes.c_size_t(0), size]
        else:
            region = (ctypes.c_size_t * 3)(*rest, 1)
            args = [(ctypes.c_size_t * 3)(), region, ctypes.c_size_t(0), ctypes.c_size_t(0)]
        return getattr(self.cl, what)(self.queue, memory, 1, *args, host, 0, None, None)

    def kernel(self):
        text = (ctypes.c_char_p * 1)(SOURCE)
        program = self.make("clCreateProgramWithSource", self.context, 1, text, None)
        assert self.cl.clBuildProgram(program, 0, None, b"", None, None) == 0
        return self.make("clCreateKernel", program, b"copy_it")


def released_handles():
    session = Session()
    memory = session.buffer(16)
    codes = [session.cl.clReleaseMemObject(memory), session.cl.clReleaseMemObject(memory)]
    return [*codes, session.copy("clEnqueueReadBuffer", memory, (ctypes.c_char * 16)())]


def test_a_released_handle_is_never_taken_again():
    outcome = run_with_fake(released_handles)
    assert outcome.value == [0, INVALID_MEM_OBJECT, INVALID_MEM_OBJECT]
    assert outcome.report["live"]["buffer"] == 0
    assert [text.split(":")[0] for text in outcome.report["refusals"]] == ["clReleaseMemObject", "clEnqueueReadBuffer"]


def image_on_a_buffer():
    session = Session()
    memory = session.buffer(2 * 64 * 16)
    unaligned, image = session.image(3, 2, memory, 3 * 16), session.image(3, 2, memory, 64 * 16)
    ones = (ctypes.c_float * 24)(*range(24))
    session.copy("clEnqueueWriteImage", image, ones, 3, 2)
    flat, back = (ctypes.c_float * 512)(), (ctypes.c_float * 24)()
    session.copy("clEnqueueReadBuffer", memory, flat)
    session.copy("clEnqueueReadImage", image, back, 3, 2)
    return [unaligned, flat[0:12] + flat[256:268], list(back)]


def test_an_image_on_a_buffer_is_the_buffers_memory_row_by_row():
    unaligned, flat, back = run_with_fake(image_on_a_buffer, image_from_buffer=1).value
    assert unaligned == INVALID_DESCRIPTOR
    assert flat == back == list(range(24))


def test_an_image_on_a_buffer_needs_the_extension():
    assert "clCreateImage: CL_INVALID_IMAGE_DESCRIPTOR" in str(run_with_fake(image_without_extension).report)


def image_without_extension():
    session = Session()
    return session.image(3, 2, session.buffer(2 * 64 * 16), 64 * 16)


def launch():
    """A copy of 5 of 8 elements, and what is refused about arguments; everything deferred until it is read."""
    session = Session()
    source, target = session.buffer(32), session.buffer(32)
    session.copy("clEnqueueWriteBuffer", source, (ctypes.c_float * 8)(*range(1, 9)))
    session.copy("clEnqueueWriteBuffer", target, (ctypes.c_float * 8)())
    kernel, number = session.kernel(), ctypes.c_int32(7)
    sizes = [ctypes.sizeof(ctypes.c_void_p)] * 2 + [2, 4]
    values = [ctypes.byref(target), ctypes.byref(source), ctypes.byref(number), ctypes.byref(number)]
    codes = [
        session.cl.clSetKernelArg(kernel, index, ctypes.c_size_t(size), value)
        for index, size, value in zip([0, 1, 2, 2], sizes, values)
    ]
    work = ctypes.byref(ctypes.c_size_t(5))
    codes.append(session.cl.clEnqueueNDRangeKernel(session.queue, kernel, 1, None, work, None, 0, None, None))
    result = (ctypes.c_float * 8)()
    session.copy("clEnqueueReadBuffer", target, result)
    session.cl.clReleaseMemObject(source)
    codes.append(session.cl.clEnqueueNDRangeKernel(session.queue, kernel, 1, None, work, None, 0, None, None))
    return [codes, list(result)]


def test_arguments_and_sizes_arrive_in_a_kernel():
    codes, result = run_with_fake(launch, defer=1).value
    assert codes == [0, 0, INVALID_ARG_SIZE, 0, 0, INVALID_MEM_OBJECT]
    assert result == [1, 2, 3, 4, 5, 0, 0, 0]


def lose_after_two():
    session = Session()
    memory, host = session.buffer(16), (ctypes.c_char * 16)()
    codes = [session.copy("clEnqueueWriteBuffer", memory, host) for _ in range(3)]
    return [*codes, session.cl.clFinish(session.queue), session.cl.clReleaseMemObject(memory)]


def test_a_lost_device_refuses_commands_and_releases_its_objects():
    assert run_with_fake(lose_after_two, lose="0:2").value == [0, 0, -2, -2, 0]


def memory_above_the_limit():
    session = Session()
    first = session.buffer(600)
    second = session.buffer(600)
    session.cl.clReleaseMemObject(first)
    return [second, isinstance(session.buffer(600), ctypes.c_void_p)]


def test_memory_is_limited_and_comes_back():
    assert run_with_fake(memory_above_the_limit, memory=1000).value == [-4, True]
