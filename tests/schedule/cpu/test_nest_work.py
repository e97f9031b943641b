# SPDX-License-Identifier: Apache-2.0
"""Cycles of loop nests: vectors, single elements, registers, repeated work."""

import pytest
from tvm import te, tirx

from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.schedule.core.nest import PARALLEL, UNROLL, VECTOR, loop, scratch, store
from smartmem_tvm.schedule.cpu.nest_work import NestWork, most_of
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.schedule.cpu.priced_work import Rates

LANES = 16


def cycles(body, cores=1) -> float:
    return Rates(CpuParams(lanes=LANES)).sum_of(NestWork(LANES, cores).of(body))


def mapped(value, length=4096, kind=None):
    """``y[i] = value(x, i)``."""
    x, y = scratch([2 * length], "float32", "x"), scratch([length], "float32", "y")
    return loop(length, lambda i: store(y, value(x, i), i), **({} if kind is None else {"kind": kind}))


def test_a_plain_loop_runs_in_vectors_and_a_gather_does_not():
    plain, gathered = cycles(mapped(lambda x, i: te.exp(x[i]))), cycles(mapped(lambda x, i: te.exp(x[i * i % 7])))
    assert 8 < gathered / plain < 40
    assert plain == pytest.approx(cycles(mapped(lambda x, i: te.exp(x[i]), kind=VECTOR)), rel=0.1)


def test_a_mask_is_cheap_and_a_choice_between_tensors_is_not():
    zero = tirx.const(0.0, "float32")
    masked = cycles(mapped(lambda x, i: te.exp(tirx.if_then_else(i < 4000, x[i], zero))))
    chosen = cycles(mapped(lambda x, i: te.exp(tirx.if_then_else(i < 4000, x[i], x[i - 4000]))))
    assert chosen > 8 * masked


def test_what_the_loop_does_not_change_is_worked_out_once():
    s = scratch([1], "float32", "s")
    hoisted, inside = (mapped(lambda x, i, at=at: x[i] * te.exp(s[0] if at == 0 else x[i])) for at in (0, 1))
    assert cycles(hoisted) * 4 < cycles(inside)


def test_work_that_is_done_again_is_counted_again():
    once = mapped(lambda x, i: te.exp(x[i]))
    assert cycles(loop(9, lambda _: once)) == pytest.approx(9 * cycles(once), rel=0.01)


@pytest.mark.parametrize(("tasks", "cores", "turns"), [(16, 16, 1), (17, 16, 2), (2, 16, 1), (12, 5, 3), (7, 1, 7)])
def test_the_thread_with_most_tasks_counts(tasks, cores, turns):
    task = mapped(lambda x, i: te.exp(x[i]))
    found = cycles(loop(tasks, lambda _: task, kind=PARALLEL), cores)
    assert found == pytest.approx(turns * cycles(task), rel=0.01)


def tile(height: int, vectors: int, depth=256):
    """A register tile of a product: ``acc[i, j] += left[i, k] * right[k, j]``."""
    width = vectors * LANES
    acc, left = scratch([height * width], "float32", "acc"), scratch([height, depth], "float32", "left")
    right = scratch([depth, width], "float32", "right")

    def add(k):
        def one(i, v):
            def lane(j):
                at = i * width + v * LANES + j
                return store(acc, acc[at] + left[i, k] * right[k, v * LANES + j], at)

            return loop(LANES, lane, "j", VECTOR)

        return loop(height, lambda i: loop(vectors, lambda v: one(i, v), "v", UNROLL), "i", UNROLL)

    return loop(depth, add, "k")


def test_a_large_tile_multiplies_twice_a_cycle_and_a_small_one_waits():
    large, small = cycles(tile(8, 3)) / (8 * 3 * 256), cycles(tile(1, 1)) / 256
    assert 0.5 <= large < 0.7
    assert small >= 4


def test_the_longest_way_of_a_choice_counts():
    one = scratch([8], "float32", "one")
    outer = scratch([8], "int32", "n")

    def chosen(x, i):
        return tirx.if_then_else(outer[0] < 3, te.exp(x[i]), one[0] * x[i])

    assert cycles(mapped(chosen)) >= cycles(mapped(lambda x, i: te.exp(x[i])))


def test_extents_of_last_shares():
    n = tirx.Var("n", "int64")
    whole = tirx.const(11, "int64")
    assert most_of(tirx.min(whole, tirx.const(84, "int64") - n * whole)) == 11
    assert most_of(whole) == 11


def test_a_kernel_without_loops_has_cycles():
    x = te.placeholder((1,), name="x")
    stage = parse(te.create_prim_func([x, te.compute((1,), lambda i: te.exp(x[i]))])).last
    assert cycles(stage.body) > 0
