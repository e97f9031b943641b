# SPDX-License-Identifier: Apache-2.0
"""The functions of `runtime.opencl`; what TVM's own interface does with the device is in `test_opencl_device`."""

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

import _smartmem_opencl
from opencl_package import python
from smartmem_tvm.errors import UserError
from smartmem_tvm.runtime import opencl

TARGET = tvm.target.Target({"kind": "opencl"}, host={"kind": "llvm"})


@I.ir_module(s_tir=True)
class Kernels:
    @T.prim_func(s_tir=True)
    def first(a: T.Buffer((64,), "float32")):
        for i in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("b"):
                v = T.axis.spatial(64, i)
                a[v] = T.float32(1)

    @T.prim_func(s_tir=True)
    def second(a: T.Buffer((64,), "float32")):
        for i in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("b"):
                v = T.axis.spatial(64, i)
                a[v] = T.float32(2)


def test_devices_are_those_of_tvm():
    found = opencl.devices()
    assert [device.index for device in found] == list(range(len(found)))
    for device in found:
        tvms = tvm.opencl(device.index)
        assert device.name == tvms.device_name and type(device.name) is str
        assert device.max_work_group_size == tvms.max_threads_per_block
        assert device.global_bytes == tvms.total_global_memory > device.max_alloc_bytes // 4
        assert device.type in ("gpu", "cpu", "accelerator")
        assert device.images is True and device.half in (True, False)
        assert device.image2d_width >= 2048 and device.image_array_depth >= 256
        assert (device.image_pitch_pixels > 0) >= device.image_from_buffer
    assert not tvm.opencl(len(found)).exist
    assert opencl.problem() is None


def test_kernels_are_built_ahead_and_run():
    module = tvm.compile(Kernels, target=TARGET)
    programs = opencl.live_objects()["program"]
    from_source = opencl.build(module)
    assert from_source in range(3)
    assert opencl.live_objects()["program"] == programs + 2
    assert opencl.build(module, tvm.opencl(0)) == from_source
    assert opencl.live_objects()["program"] == programs + 2
    filled = tvm.runtime.empty((64,), "float32", tvm.opencl(0))
    module["second"](filled)
    np.testing.assert_array_equal(filled.numpy(), np.full(64, 2, "float32"))


def test_live_objects_follow_tensors():
    before = opencl.live_objects()
    tensor = tvm.runtime.empty((16,), "float32", tvm.opencl(0))
    assert opencl.live_objects()["buffer"] == before["buffer"] + 1
    del tensor
    assert opencl.live_objects()["buffer"] == before["buffer"]


@pytest.mark.device
def test_the_cache_folder_is_the_one_of_the_environment(tmp_path):
    program = "from smartmem_tvm.runtime import opencl; print(opencl.cache_folder())"
    assert python(tmp_path, program, SMARTMEM_OPENCL_CACHE=str(tmp_path / "cache")) == [str(tmp_path / "cache")]
    assert python(tmp_path, program, SMARTMEM_OPENCL_CACHE="0") == ["None"]
    variables = {"SMARTMEM_OPENCL_CACHE": "", "XDG_CACHE_HOME": str(tmp_path / "home")}
    assert python(tmp_path, program, **variables) == [str(tmp_path / "home" / "smartmem_tvm" / "opencl")]


def test_a_device_is_chosen_by_name_or_number(tmp_path):
    program = """
from smartmem_tvm.errors import UserError
from smartmem_tvm.runtime import opencl
every = [device.name for device in opencl.devices()]
print(len(every))
print([device.name for device in opencl.select(device=every[0].swapcase())] == [every[0]])
print([device.name for device in opencl.select("portable", 1)] == [every[1]])
print([device.name for device in opencl.select()] == every)
try:
    opencl.select(device="none of them")
except UserError as error:
    print("none of them" in str(error) and every[1] in str(error))
"""
    assert python(tmp_path, program, POCL_DEVICES="basic pthread") == ["2", "True", "True", "True", "True"]


def test_a_device_in_use_stays_chosen():
    tensor = tvm.runtime.tensor(np.zeros(4, "float32"), tvm.opencl(0))
    with pytest.raises(UserError, match="before the first use"):
        opencl.select(device=0)
    np.testing.assert_array_equal(tensor.numpy(), np.zeros(4, "float32"))


def test_without_a_driver_everything_says_what_to_do(tmp_path):
    program = """
from smartmem_tvm.errors import UserError
from smartmem_tvm.runtime import opencl
print(opencl.problem())
for action in (opencl.devices, opencl.select):
    try:
        action()
    except UserError as error:
        print(error)
"""
    lines = python(tmp_path, program, SMARTMEM_OPENCL_LIBRARY="/no/such/library.so")
    assert len(lines) == 3 and len(set(lines)) == 1
    assert "/no/such/library.so" in lines[0] and "correct SMARTMEM_OPENCL_LIBRARY" in lines[0]


def test_without_the_library_its_problem_is_the_error(monkeypatch):
    monkeypatch.setattr(_smartmem_opencl, "load", lambda: None)
    monkeypatch.setattr(_smartmem_opencl, "problem", lambda: "it was not built: reinstall.")
    monkeypatch.setattr(tvm, "get_global_func", lambda name, allow_missing=False: None)
    assert opencl.problem() == "it was not built: reinstall."
    with pytest.raises(UserError, match="it was not built: reinstall"):
        opencl.devices()


def test_with_an_opencl_of_tvms_own_there_is_nothing_to_ask(monkeypatch):
    monkeypatch.setattr(tvm, "get_global_func", lambda name, allow_missing=False: None)
    assert opencl.problem() is None
    with pytest.raises(UserError, match="OpenCL of its own"):
        opencl.live_objects()
