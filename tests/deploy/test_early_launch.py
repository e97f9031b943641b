# SPDX-License-Identifier: Apache-2.0
"""Kernels of CUDA that are launched early: they wait before they read what other kernels write, and only that."""

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import te

from against_onnxruntime import model_of
from cuda_on_cpu import source_of
from smartmem_tvm import compile, from_onnx
from smartmem_tvm.ir.kernel import CONSTANTS
from smartmem_tvm.schedule.choose import choose

_FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
WAIT, GO = "griddepcontrol_wait();\n", "griddepcontrol_launch_dependents();\n"


def target(architecture: str):
    return tvm.target.Target({**_FACTS, "arch": architecture}, host="llvm")


def source(func, architecture: str):
    """Return the lines of the kernels, and the parameters of their launches."""
    where = target(architecture)
    text, kernels = source_of(choose(func.with_attr("global_symbol", "main"), where).plan.func, where)
    tags = [list(map(str, each.attrs["tirx.kernel_launch_params"])) for each in kernels]
    return text[text.rindex("__launch_bounds__") :], tags


def added():
    x = te.placeholder((1000,), "float32", "x")
    return te.create_prim_func([x, te.compute((1000,), lambda i: x[i] + 1)])


def product():
    x, w = te.placeholder((1, 1, 512), "float16", "x"), te.placeholder((512, 256), "float16", "w")
    k = te.reduce_axis((0, 512))
    term = lambda b, i, j: te.sum((x[b, i, k] * w[k, j]).astype("float32"), k)  # noqa: E731
    return te.create_prim_func([x, w, te.compute((1, 1, 256), term)])


def test_a_kernel_waits_first():
    text, (tags,) = source(added(), "sm_90a")
    assert "tirx.use_programtic_dependent_launch" in tags
    assert text.index(WAIT) < text.index(GO) < text.index("x_ptr + ")


@pytest.mark.parametrize("func", [added(), product().with_attr(CONSTANTS, [1])])
def test_older_devices_wait_for_the_whole_kernel(func):
    text, (tags,) = source(func, "sm_80")
    assert "griddepcontrol" not in text and "tirx.use_programtic_dependent_launch" not in tags


def test_a_product_copies_weights_before_it_waits():
    text, (tags,) = source(product().with_attr(CONSTANTS, [1]), "sm_90a")
    before, after = text[: text.index(WAIT)], text[text.index(WAIT) :]
    assert "tirx.use_programtic_dependent_launch" in tags
    before = before[before.index("{") :]
    assert "w_ptr" in before and "x_ptr" not in before and "x_ptr" in after


def test_a_product_of_two_results_waits_first():
    text, _ = source(product(), "sm_90a")
    before = text[text.index("{") : text.index(WAIT)]
    assert "w_ptr" not in before and "x_ptr" not in before


def test_dynamic_shared_memory_stays_the_last_parameter():
    from smartmem_tvm.deploy.early_launch import launched_early

    func = added().with_attr("tirx.kernel_launch_params", ["blockIdx.x", "threadIdx.x", "tirx.use_dyn_shared_memory"])
    (new,) = launched_early(tvm.IRModule({"main": func}), target("sm_90a")).functions.values()
    tags = list(map(str, new.attrs["tirx.kernel_launch_params"]))
    assert tags[2:] == ["tirx.use_programtic_dependent_launch", "tirx.use_dyn_shared_memory"]
    assert np.all([tags.count(each) == 1 for each in tags])


def test_a_kernel_whose_scale_is_read_once_waits_behind_its_buffers():
    """In front of the declarations of buffers it did not compile: a quantization by one number divides once."""
    scale = np.float32(0.3)
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    model = model_of(
        [node], {"x": np.zeros((2, 12), "float32")}, {"y": ("uint8", (2, 12))}, {"s": scale, "z": np.uint8(3)}
    )
    assert compile(from_onnx(model), target("sm_90a")).rules
