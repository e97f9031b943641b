# SPDX-License-Identifier: Apache-2.0
"""Thread blocks that end behind a length: the condition, and kernels of which none is known."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm._tvm import mapped
from smartmem_tvm.ir.index_map import evaluate, variables
from smartmem_tvm.ir.kernel import POSITIONS
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.schedule import schedule_kernels
from smartmem_tvm.schedule.gpu.end_blocks import with_ends
from smartmem_tvm.schedule.schedule_kernels import ScheduleKernels
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import SkipPositions

ROW, COLUMN = 1, 2  # axes of a result (batch, rows, columns)


def kernel(kind, batch, rows, columns, depth, axis, each=1):
    """A product, softmax of rows or an element-wise kernel with the length as its last input."""
    x = te.placeholder((batch, rows, depth if kind == "product" else columns), "float32", "x")
    w, n = te.placeholder((depth, columns), "float32", "w"), te.placeholder((1,), "int64", "n")
    k = te.reduce_axis((0, depth), "k")
    if kind == "product":
        y = te.compute((batch, rows, columns), lambda b, i, j: te.sum(x[b, i, k] * w[k, j], axis=k), "y")
        given = [x, w, n]
    elif kind == "rows":
        last = te.reduce_axis((0, columns), "j")
        most = te.compute((batch, rows), lambda b, i: te.max(x[b, i, last], axis=last), "most")
        y = te.compute((batch, rows, columns), lambda b, i, j: tirx.exp(x[b, i, j] - most[b, i]), "y")
        given = [x, n]
    else:
        y = te.compute((batch, rows, columns), lambda b, i, j: tirx.exp(x[b, i, j]), "y")
        given = [x, n]
    func = te.create_prim_func([*given, y])
    return func.with_attrs({POSITIONS: [len(given) - 1, axis, 0, each, 0, 1], "global_symbol": "main"})


def scheduled(func, at_once=1):
    """The kernel as a device schedules it that runs so many thread blocks at once."""
    with parse_target("cuda"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_kernels, "with_ends", lambda done, _: with_ends(done, at_once))
        return ScheduleKernels()(tvm.IRModule({"main": func}))["main"]


def leaves(func):
    """The conditions on which threads return."""
    found = [each for each in collect(func.body, tirx.IfThenElse) if "thread_return" in str(each.then_case)]
    return [each.condition for each in found if not collect(each.then_case, tirx.BufferStore)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["product", "rows", "elementwise"])
def test_a_block_that_ends_stores_nothing_before_the_length(kind, seed):
    random = np.random.default_rng(seed)
    batch, rows, columns, depth = (int(random.choice(each)) for each in ((1, 3), (17, 64, 200), (5, 32, 96), (8, 40)))
    func = scheduled(kernel(kind, batch, rows, columns, depth, ROW))
    if not (found := leaves(func)):
        assert batch > 1 or columns * rows < 256  # a thread block may have rows of two items, or all rows
        return
    (condition,) = found
    loops = {each.loop_var: each for each in collect(func.body, tirx.For)}
    block = next(v for v, each in loops.items() if "blockIdx" in str(getattr(each.thread_binding, "thread_tag", "")))
    length = int(random.integers(1, rows))
    loads = collect(condition, tvm.ir.TensorLoad)
    bound = tirx.Var("length", str(loads[0].ty.dtype))
    plain = with_length(condition, loads[0], bound)
    numbers = np.arange(int(loops[block].extent))
    ended = np.broadcast_to(evaluate(plain, {block: numbers, bound: np.array(length)}), numbers.shape)
    assert not ended[0] and (rows < 2 * length or batch > 1 or ended.any() or kind == "elementwise")
    for stored in collect(func.body, tirx.BufferStore):
        if not stored.buffer.same_as(func.params[-1]):
            continue
        for number in numbers[ended]:
            places = values(stored.indices[ROW], {block: np.array(int(number))}, loops, random)
            assert (places >= length).all()


def with_length(expr, load, var):
    return mapped(expr, (tvm.ir.TensorLoad, lambda each: var if each.source.same_as(load.source) else each))


def values(index, known, loops, random):
    """The values of an index at drawn points of its loops."""
    points = dict(known)
    for var in variables(index):
        if var not in points:
            points[var] = random.integers(0, int(loops[var].extent), 200) + int(loops[var].min)
    return np.asarray(evaluate(index, points))


def test_positions_along_columns_have_no_block_of_their_own():
    func = scheduled(kernel("product", 1, 64, 32, 16, COLUMN))
    for condition in leaves(func):  # if column tiles have thread blocks of their own, those may end
        assert "blockIdx" in str(condition)


def test_kernels_without_positions_stay():
    func = kernel("product", 1, 64, 32, 16, ROW).without_attr(POSITIONS)
    found = scheduled(func)
    assert not leaves(found) and with_ends(found, 1).same_as(found)


def test_on_gpus_no_kernel_is_told_to_write_zeros():
    assert SkipPositions(zeros=False).zeros is False and SkipPositions().zeros


def test_blocks_that_run_at_once_read_no_length():
    func = kernel("product", 1, 200, 96, 40, ROW)
    (launch,) = [each for each in collect(scheduled(func).body, tirx.For) if "blockIdx" in str(each.thread_binding)]
    blocks = int(launch.extent)
    assert leaves(scheduled(func, blocks - 1)) and not leaves(scheduled(func, blocks))
    with parse_target("cuda"):  # of 132 processors, if the target names no device
        assert not leaves(ScheduleKernels()(tvm.IRModule({"main": func}))["main"])
        many = kernel("product", 1, 4096, 96, 40, ROW)
        assert leaves(ScheduleKernels()(tvm.IRModule({"main": many}))["main"])
