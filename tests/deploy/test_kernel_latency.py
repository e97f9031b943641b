# SPDX-License-Identifier: Apache-2.0
"""Latency of single kernels: comparable, on data that a kernel can take."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

from helpers import legal, nodes, op
from smartmem_tvm.deploy.kernel_latency import compiled, index_bounds, kernel_seconds, random_arguments
from smartmem_tvm.deploy.this_machine import ThisMachine, launcher
from smartmem_tvm.ir.kernel import emit, parse
from smartmem_tvm.target import host_target, parse_target


def kernels(build, *shapes, dtype="float32"):
    """The PrimFuncs of a small network, one per operator."""
    return [emit(node.kernel) for node in nodes(legal(build, *shapes, dtype=dtype))]


def launch_seconds(functions, target) -> list[float]:
    """Median seconds of one launch of each kernel, all of them in this process."""
    return ThisMachine(target).run(lambda device: kernel_seconds(device, compiled(functions, target)))


def test_more_work_takes_longer():
    small = kernels(op.matmul, (4, 16), (16, 16))  # one thread does it: to wake others may take long on a busy machine
    large = kernels(op.matmul, (256, 256), (256, 256))
    fast, slow = launch_seconds(small + large, host_target())
    assert 0 < fast < slow / 4


def test_on_an_opencl_device():
    small, large = kernels(op.matmul, (16, 64), (64, 64)), kernels(op.matmul, (256, 256), (256, 256))
    fast, slow = launch_seconds(small + large, parse_target("opencl"))
    assert 0 < fast < slow


def test_the_order_of_the_results_is_that_of_the_kernels():
    small, large = kernels(op.exp, (8, 8)), kernels(op.exp, (1024, 512))
    times = launch_seconds(small + large + small, host_target())
    assert len(times) == 3
    assert times[1] > 10 * max(times[0], times[2])


def test_kernels_are_scheduled_as_in_a_model(monkeypatch):
    """The loops that run carry the schedule's mark."""
    seen = []
    real = tvm.compile
    monkeypatch.setattr(tvm, "compile", lambda mod, target: seen.append(mod) or real(mod, target))
    compiled(kernels(op.matmul, (16, 64), (64, 64)), host_target())
    (function,) = seen[0].functions.values()
    assert int(function.attrs["tirx.is_scheduled"]) == 1


def test_sets_of_arguments_take_turns():
    called = []
    launch = launcher(lambda *arguments: called.append(arguments), [(1, 2), (3, 4)], tvm.cpu())
    launch(3)
    assert called == [(1, 2), (3, 4), (1, 2)]


def gather(x, i):
    return op.take(x, i, axis=0)


def test_indices_stay_within_bounds():
    (func,) = kernels(gather, (7, 3), ((50,), "int64"))
    indices = random_arguments(func)[1]
    assert indices.dtype == np.int64
    assert set(indices) == set(range(7)), "and all of them are picked"
    assert launch_seconds([func], host_target())[0] > 0


@T.prim_func(s_tir=True)
def gathers_with_arithmetic(
    x: T.Buffer((20,), "float32"),
    i: T.Buffer((4,), "int32"),
    j: T.Buffer((4,), "int32"),
    y: T.Buffer((4, 3), "float32"),
):
    for a, b in T.grid(4, 3):
        with T.sblock("gather"):
            va, vb = T.axis.remap("SS", [a, b])
            y[va, vb] = x[i[va] * 3 + vb + 2 + i[va] * j[va] * 0]


def test_bounds_account_for_arithmetic_on_indices():
    kernel = parse(gathers_with_arithmetic)
    bounds = {buffer.name: below for buffer, below in index_bounds(kernel).items()}
    assert bounds["i"] == 6  # 5 * 3 + 2 + 2 = 19, the last of 20 elements


def test_bounds_of_indices_into_several_dimensions():
    mod = legal(lambda x, i: op.add(gather(x, i), op.take(x, i, axis=0)), (5, 5), ((2,), "int32"))
    for node in nodes(mod):
        for below in index_bounds(node.kernel).values():
            assert below == 5


@T.prim_func(s_tir=True)
def gathers_from_a_table_of_indices(
    x: T.Buffer((9,), "float32"),
    table: T.Buffer((6,), "int64"),
    i: T.Buffer((4,), "int64"),
    y: T.Buffer((4,), "float32"),
):
    for a in T.serial(4):
        with T.sblock("gather"):
            va = T.axis.spatial(4, a)
            y[va] = x[table[i[va]]]


def test_bounds_of_indices_that_are_looked_up():
    bounds = {buffer.name: below for buffer, below in index_bounds(parse(gathers_from_a_table_of_indices)).items()}
    assert bounds == {"table": 9, "i": 6}
    assert launch_seconds([gathers_from_a_table_of_indices], host_target())[0] > 0


@T.prim_func(s_tir=True)
def gathers_out_of_bounds(x: T.Buffer((4,), "float32"), i: T.Buffer((4,), "int64"), y: T.Buffer((4,), "float32")):
    for a in T.serial(4):
        with T.sblock("gather"):
            va = T.axis.spatial(4, a)
            y[va] = x[i[va] - 1]


def test_an_index_that_may_be_negative_gets_the_first_element_only():
    """Nothing better can be shown; the kernel itself must then be right for 0."""
    assert list(index_bounds(parse(gathers_out_of_bounds)).values()) == [1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "bool"])
def test_every_dtype_has_numbers(dtype):
    build = op.logical_and if dtype == "bool" else op.add
    (func,) = kernels(build, (6, 5), (6, 5), dtype=dtype)
    left, right, out = random_arguments(func)
    assert left.shape == right.shape == out.shape == (6, 5)
    assert str(left.dtype) == dtype
    assert not np.array_equal(left, right) and len(np.unique(left)) > 1
    assert np.isfinite(left.astype("float64")).all()


def test_functions_without_loop_structure_get_numbers_too():
    mod = legal(lambda x, i, u: op.scatter_elements(x, i, u), (4, 6), ((2, 6), "int64"), (2, 6))
    (func,) = (func for func in mod.functions.values() if not isinstance(func, relax.Function))
    assert [array.shape for array in random_arguments(func)] == [(4, 6), (2, 6), (2, 6), (4, 6)]
