# SPDX-License-Identifier: Apache-2.0
"""What no other rule for GPUs reads runs on threads all the same, and is right."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from gpu_rule_checks import kernels, threads
from helpers import module, op
from recurrent_layer import recurrent_layer
from smartmem_tvm import compile, from_onnx
from smartmem_tvm.schedule.core.steps import has_steps
from smartmem_tvm.schedule.gpu.fallback import GpuLoops, on_threads
from smartmem_tvm.target import device_of, parse_target

TARGET = parse_target("opencl")


def built(func: tirx.PrimFunc, *arrays, result) -> str:
    """Run `func` on the device, the last parameter being `result`; returns the source."""
    scheduled = GpuLoops().apply(func.with_attr("global_symbol", "main"), TARGET).mod["main"]
    assert on_threads(scheduled)
    compiled = tvm.compile(tvm.IRModule({"main": scheduled.with_attr("tirx.is_scheduled", True)}), TARGET)
    device = device_of(TARGET)
    output = tvm.runtime.tensor(np.full_like(result, 7), device)
    compiled["main"](*(tvm.runtime.tensor(a, device) for a in arrays), output)
    np.testing.assert_allclose(output.numpy(), result, rtol=1e-5, atol=1e-5)
    (imported,) = compiled.mod.imports
    return imported.inspect_source()


@pytest.mark.parametrize("shape", [(13, 29, 5), (1, 1, 1), (300, 2, 3)])
def test_a_thread_for_each_point_of_the_outer_loops(shape):
    x = te.placeholder(shape, name="x")
    k = te.reduce_axis((0, shape[2]), "k")
    func = te.create_prim_func([x, te.compute(shape[:2], lambda i, j: te.sum(x[i, j, k] * 2, k))])
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    source = built(func, data, result=2 * data.sum(2))
    assert kernels(source) == 1 and threads(source) >= shape[0] * shape[1]


def test_nests_are_launched_one_after_the_other():
    x, k = te.placeholder((17, 3), name="x"), te.reduce_axis((0, 17), "k")
    total = te.compute((3,), lambda j: te.sum(x[k, j], k))
    func = te.create_prim_func([x, total, te.compute((17, 3), lambda i, j: x[i, j] - total[j])])
    data = np.random.default_rng(0).standard_normal((17, 3)).astype("float32")
    assert kernels(built(func, data, np.zeros(3, "float32"), result=data - data.sum(0))) == 2


@T.prim_func(s_tir=True)
def running(x: T.Buffer((37,), "float32"), y: T.Buffer((37,), "float32")):
    """Each element needs the one before it: no loop is parallel."""
    with T.sblock("all"):
        T.reads(x[0:37])
        T.writes(y[0:37])
        y[0] = x[0]
        for i in T.serial(36):
            y[i + 1] = y[i] + x[i + 1]


def test_loops_that_are_not_parallel_are_one_thread():
    x = np.arange(37, dtype="float32")
    assert threads(built(running, x, result=np.cumsum(x))) == 1


def test_what_is_on_threads_is_left_alone():
    scheduled = GpuLoops().apply(running, TARGET).mod["main"]
    assert GpuLoops().apply(scheduled, TARGET) is None
    assert not on_threads(running) and GpuLoops().apply(running, parse_target("cpu")) is None


@pytest.mark.parametrize("sizes", [(4, 5), (1, 7), (15, 17)])
def test_windows_of_different_sizes(sizes):
    """Without this rule such a kernel would run on the host and write to the device's memory."""
    mod = module(lambda x: op.nn.adaptive_avg_pool2d(x, sizes), (1, 3, 15, 17))
    x = np.random.default_rng(0).standard_normal((1, 3, 15, 17)).astype("float32")
    np.testing.assert_allclose(compile(mod, TARGET).run(x)[0], compile(mod).run(x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("op", "batch", "ways"), [pytest.param("GRU", 3, 2, marks=pytest.mark.device), ("LSTM", 2, 1)])
def test_steps_that_wait_for_each_other_are_launches(op, batch, ways):
    """A thread for each hidden unit; the loop over the steps is the host's."""
    mod = from_onnx(recurrent_layer(op, 40, 5, batch, ways))
    x = np.random.default_rng(0).standard_normal((5, batch, 5)).astype("float32")
    for mine, right in zip(compile(mod, TARGET).run(x), compile(mod).run(x), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)
    (func,) = (f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc) and has_steps(f))
    scheduled = GpuLoops().apply(func.with_attr("global_symbol", "main"), TARGET).mod["main"]
    (loop,) = (each for each in scheduled.body.block.body.seq if isinstance(each, tirx.For) and not on_thread(each))
    assert int(loop.extent) == 5 and all(map(on_thread, loop.body.seq if op == "GRU" else [loop.body]))


def on_thread(nest: tirx.Stmt) -> bool:
    """Whether a statement is a launch."""
    return isinstance(nest, tirx.For) and nest.thread_binding is not None
