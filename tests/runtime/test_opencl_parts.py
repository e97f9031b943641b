# SPDX-License-Identifier: Apache-2.0
"""Tensors of an arena on an OpenCL device: parts of one buffer, made once, and right."""

import numpy as np
import pytest

from fake_driver import run_with_fake, run_with_pocl
from helpers import constant, module, op
from opencl_child import fake, load
from smartmem_tvm.deploy.build import compile
from smartmem_tvm.options import Options
from smartmem_tvm.runtime import opencl

NOTHING = {"buffer": 0, "image": 0}


def network():
    """Eight kernels, one of which reads what the first wrote."""

    def build(x):
        first = hidden = op.nn.softmax(op.matmul(x, constant(16, 160)))
        for _ in range(3):
            hidden = op.nn.softmax(op.matmul(hidden, constant(160, 160)))
        return op.matmul(op.add(hidden, first), constant(160, 4))

    return module(build, (12, 16))


CALLS = ("clCreateBuffer", "clCreateImage", "clCreateKernel", "clSetKernelArg", "clEnqueueNDRangeKernel")


def inferences(times: int):
    """Calls of the driver in each inference, bytes that it holds, what of them is planned, and what is left."""
    compiled = compile(network(), "opencl", Options(merge_chains=False))
    machine, made = compiled.machine(), []
    main, tensors = machine["main"], machine.tensors([np.zeros((12, 16), "float32")])
    for _ in range(times):
        fake().forget()
        main(*tensors)
        machine.device.sync()
        made.append([fake().calls(each) for each in CALLS])
    held = fake().report()["used_bytes"][0]
    arena = compiled.memory["storages"][0]["bytes"]
    planned = [each["bytes"] for each in compiled.memory["tensors"] if each["storage"] == 0]
    del compiled, machine, main, tensors
    load().get_global_func("vm.builtin.memory_manager.clear")()
    left = {kind: count for kind, count in opencl.live_objects().items() if kind in NOTHING}
    return [made, held, arena, planned, left]


@pytest.mark.device
def test_an_arena_is_one_object_whose_arguments_are_set_once():
    """What an inference makes and calls: the arena and the result in the first one, launches alone at last.

    The second one notes all launches but the first and the last, whose tensors do not stay, with kernels of their own.
    In the third one there is a second result: the virtual machine holds one until the next is there.
    """
    (first, second, third, *others), held, arena, planned, left = run_with_fake(inferences, 6).value
    buffers, images, kernels, arguments, launches = first
    assert len(planned) > 2 and arena < sum(planned) / 2 < held
    assert (buffers, images) == (2, 0) and launches == 8
    # Two tensors and a weight at most, and where each of them begins.
    assert kernels <= launches and arguments <= 6 * launches
    assert second[:3] == [0, 0, launches - 2] and second[4] == launches
    assert third == [1, 0, 1, 6, launches]
    assert others == [[0, 0, 0, 0, launches]] * 3
    assert left == NOTHING


def right_on_a_device(times: int):
    """Largest difference from the CPU in each inference."""
    x = np.random.default_rng(0).standard_normal((12, 16)).astype("float32")
    (expected,) = compile(network()).run(x)
    compiled = compile(network(), "opencl", Options(merge_chains=False))
    found = [float(np.abs(compiled.run(x)[0] - expected).max()) for _ in range(times)]
    return [found, len(compiled.memory["storages"]), len(compiled.memory["tensors"])]


@pytest.mark.device
def test_parts_on_a_real_driver_are_right():
    found, storages, tensors = run_with_pocl(right_on_a_device, 3).value
    assert max(found) < 1e-4 and storages == 1 < tensors


def not_a_buffer():
    """What is said of a tensor that is no part of an OpenCL buffer."""
    part = load().get_global_func("vm.builtin.smartmem_part")
    try:
        part(load().runtime.tensor(np.zeros(4, "float32")))
    except TypeError as error:
        return str(error)


@pytest.mark.device
def test_other_tensors_are_refused():
    assert "takes a tensor in an OpenCL buffer" in run_with_fake(not_a_buffer).value
