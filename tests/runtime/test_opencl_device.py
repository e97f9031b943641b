# SPDX-License-Identifier: Apache-2.0
"""The OpenCL device behind TVM's own interfaces, on this machine's driver: copies, streams, modules, launches."""

import ctypes
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script import ir as I
from tvm.script import tirx as T

import smartmem_tvm  # noqa: F401  loads the device

TARGET = tvm.target.Target({"kind": "opencl"}, host={"kind": "llvm"})
DTYPES = ["float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"]


@I.ir_module(s_tir=True)
class Kernels:
    @T.prim_func(s_tir=True)
    def scale(a: T.Buffer((1000,), "float32"), b: T.Buffer((1000,), "float32"), by: T.float32, offset: T.int32):
        T.func_attr({"tirx.noalias": True})
        for i in T.thread_binding(10, thread="blockIdx.x"):
            for j in T.thread_binding(100, thread="threadIdx.x"):
                with T.sblock("b"):
                    v = T.axis.spatial(1000, i * 100 + j)
                    b[v] = a[v] * by + T.cast(offset, "float32")


@pytest.fixture(scope="module")
def device():
    dev = tvm.opencl(0)
    assert dev.exist, tvm.get_global_func("smartmem.opencl.problem")()
    return dev


@pytest.fixture(scope="module")
def kernels():
    return tvm.compile(Kernels, target=TARGET)


def live() -> dict:
    return dict(tvm.get_global_func("smartmem.opencl.live_objects")())


def random(shape, dtype="float32", seed=0):
    values = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, shape)
    return values.astype(dtype)


def test_the_device_tells_what_it_is(device):
    assert device.device_name and device.compute_version[0].isdigit()
    assert device.max_threads_per_block >= 64 and device.warp_size >= 1
    assert len(device.max_thread_dimensions) == 3 and min(device.max_thread_dimensions) >= 1
    assert device.multi_processor_count >= 1 and device.max_clock_rate >= 0
    assert device.max_shared_memory_per_block > 0 and device.total_global_memory > device.max_shared_memory_per_block
    assert device.available_global_memory is None, "OpenCL cannot tell"
    assert not tvm.opencl(99).exist


def test_a_device_number_too_high_says_which_there_are():
    with pytest.raises(ValueError, match=r"no device opencl:99: .* are .*numbered from 0"):
        tvm.runtime.empty((4,), "float32", tvm.opencl(99))


@pytest.mark.parametrize("dtype", DTYPES)
def test_host_to_device_and_back_keeps_every_byte(device, dtype):
    for shape in [(), (1,), (7, 13), (3, 1, 5), (0, 4)]:
        values = random(shape, dtype)
        np.testing.assert_array_equal(tvm.runtime.tensor(values, device).numpy(), values)


def test_device_to_device_copies_do_not_alias(device):
    first = tvm.runtime.tensor(random((33, 5)), device)
    second = tvm.runtime.empty((33, 5), "float32", device)
    second.copyfrom(first)
    first.copyfrom(np.zeros((33, 5), "float32"))
    np.testing.assert_array_equal(second.numpy(), random((33, 5)))


def test_a_view_at_an_offset_copies_its_own_bytes(device):
    whole = tvm.runtime.tensor(random((6, 4)), device)
    part = whole._create_view((2, 4), "float32", 3 * 4 * 4)
    np.testing.assert_array_equal(part.numpy(), random((6, 4))[3:5])
    part.copyfrom(np.full((2, 4), 7, "float32"))
    expected = random((6, 4))
    expected[3:5] = 7
    np.testing.assert_array_equal(whole.numpy(), expected)


def test_a_kernel_gets_its_scalars_and_buffers(device, kernels):
    a = tvm.runtime.tensor(random(1000), device)
    b = tvm.runtime.empty((1000,), "float32", device)
    kernels["scale"](a, b, 0.5, -3)
    np.testing.assert_allclose(b.numpy(), random(1000) * 0.5 - 3)


def test_streams_run_in_order_and_wait_for_one_another(device, kernels):
    first, second = device.create_raw_stream(), device.create_raw_stream()
    a = tvm.runtime.tensor(random(1000), device)
    b, c = (tvm.runtime.empty((1000,), "float32", device) for _ in range(2))
    sync_from_to = tvm.get_global_func("runtime.Device_StreamSyncFromTo")
    for step in range(20):
        device.set_raw_stream(first)
        kernels["scale"](a, b, 1.0, step)
        sync_from_to(device, first, second)
        device.set_raw_stream(second)
        kernels["scale"](b, c, 2.0, 0)
        sync_from_to(device, second, first)
    device.sync(second)
    device.set_raw_stream(0)
    np.testing.assert_allclose(c.numpy(), (random(1000) + 19) * 2)
    queues = live()["queue"]
    for stream in (first, second):
        device.free_raw_stream(stream)
    assert live()["queue"] == queues - 2


def test_a_stream_freed_elsewhere_is_named(device):
    stream = device.create_raw_stream()
    device.set_raw_stream(stream)
    with ThreadPoolExecutor(1) as other:
        other.submit(device.free_raw_stream, stream).result()
    with pytest.raises(RuntimeError, match=r"a stream of OpenCL device opencl:0 .* was used after it was freed"):
        tvm.runtime.tensor(random(4), device)
    device.set_raw_stream(0)
    np.testing.assert_array_equal(tvm.runtime.tensor(random(4), device).numpy(), random(4))


@pytest.mark.parametrize("shape", [(1 << 62, 8), (1 << 40,)])
def test_a_tensor_larger_than_the_device_is_refused(device, shape):
    with pytest.raises(RuntimeError, match=r"a tensor of .* bytes does not fit the .* smaller batch"):
        tvm.runtime.empty(shape, "float32", device)


def test_the_timer_measures_on_the_device_and_leaves_no_events(device, kernels):
    a, b = (tvm.runtime.tensor(random(1000), device) for _ in range(2))
    before = live()["event"]
    result = kernels.mod.time_evaluator("scale", device, number=20, repeat=3)(a, b, 1.0, 0)
    assert len(result.results) == 3 and 0 < min(result.results) < 1
    assert live()["event"] == before


def test_a_module_survives_export_and_load(device, kernels, tmp_path):
    kernels.export_library(str(tmp_path / "scale.so"))
    loaded = tvm.runtime.load_module(str(tmp_path / "scale.so"))
    a, b = tvm.runtime.tensor(random(1000), device), tvm.runtime.empty((1000,), "float32", device)
    loaded["scale"](a, b, 2.0, 1)
    np.testing.assert_allclose(b.numpy(), random(1000) * 2 + 1)


def opencl_module(module) -> tvm_ffi.Module:
    found = [module] if module.kind == "opencl" else []
    return (found + [opencl_module(item) for item in module.imports])[0]


def saved(source: str, name: str) -> bytes:
    """A module of one kernel with a buffer argument, in the bytes that TVM's compiler saves."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    arguments = struct.pack("<QBBH", 1, 3, 64, 1)  # one handle
    tags = struct.pack("<Q", 1) + text("threadIdx.x")
    function = text(name) + text(name) + arguments + tags + struct.pack("<Q", 0)
    return text("cl") + struct.pack("<Q", 1) + function + text(source)


FILL = "// Function: fill\n__kernel void fill(__global float* a) { a[get_local_id(0)] = 5; }\n"
LOAD = "ffi.Module.load_from_bytes.opencl"


def test_a_module_loads_from_the_bytes_that_tvm_saves(device):
    module = tvm_ffi.get_global_func(LOAD)(saved(FILL, "fill"))
    assert module.kind == "opencl" and module.inspect_source() == module.inspect_source("cl") == FILL
    a = tvm.runtime.empty((8,), "float32", device)
    tvm_ffi.get_global_func("__tvm_set_device")(device.dlpack_device_type(), 0)
    module["fill"](ctypes.c_void_p(a.data_ptr()), 8)
    np.testing.assert_array_equal(a.numpy(), np.full(8, 5, "float32"))


def test_a_damaged_module_says_so():
    data = saved(FILL, "fill")
    for end in (0, 5, 40, len(data) - 1):
        with pytest.raises(ValueError, match="ends too early"):
            tvm_ffi.get_global_func(LOAD)(data[:end])


def test_a_compiled_module_shows_its_source(kernels):
    assert "__kernel void scale_kernel" in opencl_module(kernels.mod).inspect_source()


def test_a_work_group_too_large_names_the_kernel_and_the_limit(device):
    groups = device.max_threads_per_block * 2

    @I.ir_module(s_tir=True)
    class TooLarge:
        @T.prim_func(s_tir=True)
        def fill(b: T.Buffer((groups,), "float32")):
            for j in T.thread_binding(groups, thread="threadIdx.x"):
                with T.sblock("b"):
                    v = T.axis.spatial(groups, j)
                    b[v] = T.float32(1)

    big = tvm.target.Target({"kind": "opencl", "max_num_threads": groups}, host={"kind": "llvm"})
    module = tvm.compile(TooLarge, target=big)
    with pytest.raises(RuntimeError, match=rf"fill_kernel .*work groups of \({groups}\).*at most .*max_num_threads"):
        module["fill"](tvm.runtime.empty((groups,), "float32", device))
