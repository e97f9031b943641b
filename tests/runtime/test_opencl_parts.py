# SPDX-License-Identifier: Apache-2.0
"""Tensors of an arena on an OpenCL device: parts of one buffer, made once, and right."""

import numpy as np
import pytest

from fake_driver import run_with_fake, run_with_pocl
from helpers import constant, module, op
from opencl_child import fake, load
from smartmem_tvm.deploy.build import compile
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


def inferences(times: int):
    """Sub-buffers made in each inference, bytes that the driver holds, what of them is planned, and what is left."""
    compiled = compile(network(), "opencl")
    source, made = np.zeros((12, 16), "float32"), []
    for _ in range(times):
        fake().forget()
        compiled.run(source)
        made.append(fake().calls("clCreateSubBuffer"))
    held = fake().report()["used_bytes"][0]
    arena = compiled.memory["storages"][0]["bytes"]
    tensors = [each for each in compiled.memory["tensors"] if each["storage"] == 0]
    places = len({(each["offset"], each["bytes"]) for each in tensors})
    del compiled
    load().get_global_func("vm.builtin.memory_manager.clear")()
    left = {kind: count for kind, count in opencl.live_objects().items() if kind in NOTHING}
    return [made, held, arena, sum(each["bytes"] for each in tensors), places, left]


@pytest.mark.device
def test_parts_are_made_once():
    made, _, arena, tensors, places, left = run_with_fake(inferences, 3).value
    assert made == [places, 0, 0] and places > 2
    assert arena < tensors / 2
    assert left == NOTHING


@pytest.mark.device
def test_a_device_that_asks_for_more_alignment_holds_tensors_beside_the_arena():
    aligned, coarse = (run_with_fake(inferences, 3, base_align=align).value for align in (512, 1 << 20))
    assert coarse[0][1:] == [0, 0] and coarse[1] > aligned[1]
    assert coarse[-1] == NOTHING


def right_on_a_device(times: int):
    """Largest difference from the CPU in each inference."""
    x = np.random.default_rng(0).standard_normal((12, 16)).astype("float32")
    (expected,) = compile(network()).run(x)
    compiled = compile(network(), "opencl")
    found = [float(np.abs(compiled.run(x)[0] - expected).max()) for _ in range(times)]
    return [found, len(compiled.memory["storages"]), len(compiled.memory["tensors"])]


@pytest.mark.device
def test_parts_on_a_real_driver_are_right():
    found, storages, tensors = run_with_pocl(right_on_a_device, 3).value
    assert max(found) < 1e-4 and storages == 2 < tensors


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
