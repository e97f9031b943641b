# SPDX-License-Identifier: Apache-2.0
"""LowerRotations: rolls without a modulo, right also after their loops are fused."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import ir, s_tir
from tvm.script import tirx as T

from helpers import assert_same_results, calls, count_up, legal, op, random, run
from module_lines import assert_lines
from smartmem_tvm.ir.index_map import division_count
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.transform import EliminateLayout, LowerRotations
from smartmem_tvm.tvm_mends import GuardDivisions


def rolled(x, cut, axis, size):
    tail, head = op.strided_slice(x, [axis], [cut], [size]), op.strided_slice(x, [axis], [0], [cut])
    return op.concat([tail, head], axis)


def roll_of_two_axes(rows, columns, size=(3, 3)):
    def build(x):
        return op.negative(rolled(rolled(x, rows, 0, size[0]), columns, 1, size[1]))

    return EliminateLayout()(legal(build, size))


def fuse_loops(mod):
    """Fuse the two loops of the only kernel, as schedules do."""
    (name,) = calls(mod)
    schedule = s_tir.Schedule(mod[name])
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.fuse(*schedule.get_loops(block))
    mod = mod.clone()
    mod.update_func(mod.get_global_var(name), schedule.mod["main"])
    return mod


def expected(rows, columns, size=(3, 3)):
    return -np.roll(count_up(*size), (-rows, -columns), (0, 1))


def test_a_roll_becomes_compare_and_subtract():
    after = LowerRotations()(roll_of_two_axes(1, 2))
    assert_lines(
        after,
        """
        for i0, i1 in grid(3, 3):
            compute[i0, i1] = x0[i0 + 1 - Select(i0 + 1 >= 3, 3, 0), i1 + 2 - Select(i1 + 2 >= 3, 3, 0)] * -1.0
        gv = call tir_negative1(x0)
        """,
    )
    np.testing.assert_array_equal(run(after, count_up(3, 3))[0], expected(1, 2))


@settings(max_examples=12)
@given(
    size=st.tuples(st.integers(2, 9), st.integers(2, 9)),
    cuts=st.tuples(st.integers(1, 8), st.integers(1, 8)),
)
def test_rolls_with_fused_loops(size, cuts):
    rows, columns = (1 + (cut - 1) % (extent - 1) for cut, extent in zip(cuts, size))
    mod = fuse_loops(LowerRotations()(roll_of_two_axes(rows, columns, size)))
    np.testing.assert_array_equal(run(mod, count_up(*size))[0], expected(rows, columns, size))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 2), (2, 2)])
def test_rotations_survive_fused_loops_without_the_pass(rows, columns):
    """What is left of them is guarded when kernels are lowered."""
    mod = GuardDivisions()(fuse_loops(roll_of_two_axes(rows, columns)))
    np.testing.assert_array_equal(run(mod, count_up(3, 3))[0], expected(rows, columns))


@T.prim_func(s_tir=True)
def fused_roll(x: T.Buffer((3, 3), "float32"), y: T.Buffer((3, 3), "float32")):
    for b in T.serial(9):
        with T.sblock("roll"):
            vi = T.axis.spatial(3, b // 3)
            vj = T.axis.spatial(3, b % 3)
            y[vi, vj] = x[(vi + 2) % 3, (vj + 2) % 3]


def test_it_is_still_needed():
    """TVM 0.27 compiles two rotations of one loop wrongly. If this fails, TVM is mended: drop the pass."""

    @T.prim_func(s_tir=True)
    def rotate(x: T.Buffer((3, 3), "float32"), y: T.Buffer((9,), "float32")):
        for i in T.serial(9):
            with T.sblock("rotate"):
                vi = T.axis.spatial(9, i)
                y[vi] = x[(vi // 3 + 2) % 3, (vi % 3 + 2) % 3]

    right = np.roll(count_up(3, 3), (-2, -2), (0, 1)).ravel()
    mod = tvm.IRModule({"main": rotate})
    results = []
    for each in (mod, LowerRotations()(mod)):
        out = tvm.runtime.tensor(np.zeros(9, "float32"))
        tvm.compile(each, "llvm")["main"](tvm.runtime.tensor(count_up(3, 3)), out)
        results.append(out.numpy())
    assert not np.array_equal(results[0], right)
    np.testing.assert_array_equal(results[1], right)


@pytest.mark.parametrize("size", [(8, 8), (14, 14), (7, 9)])
def test_rolled_windows_after_scheduling(size):
    """A shifted window partition with the schedules that the pipeline uses."""
    rows, columns = size

    def build(x):
        x = rolled(rolled(x, 3, 0, rows), 2, 1, columns)
        return op.nn.relu(op.permute_dims(x, (1, 0, 2)))

    before = legal(build, (*size, 4))
    with tvm.target.Target({"kind": "llvm", "num-cores": 2}):
        after = ScheduleKernels()(LowerRotations()(EliminateLayout()(before)))
    assert_same_results(before, after, *random((*size, 4)))


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.exp(op.reshape(x, (6, 4))),  # // and % of a reshape, no shift
        lambda x: op.exp(op.permute_dims(x)),
        lambda x: op.exp(op.tile(x, (2, 2))),
    ],
)
def test_other_maps_are_left_alone(build):
    before = EliminateLayout()(legal(build, (4, 6)))
    ir.assert_structural_equal(LowerRotations()(before.clone()), before)


def test_scheduled_and_opaque_functions_are_left_alone():
    before = fuse_loops(roll_of_two_axes(1, 2))
    ir.assert_structural_equal(LowerRotations()(before.clone()), before)


def test_a_rotation_of_a_merged_index():
    """The wrap-around of a flattened image: (i * 4 + j + 5) % 24."""

    def build(x):
        flat = rolled(op.reshape(x, (24,)), 5, 0, 24)
        return op.negative(op.reshape(flat, (6, 4)))

    mod = LowerRotations()(EliminateLayout()(legal(build, (6, 4))))
    x = count_up(6, 4)
    np.testing.assert_array_equal(run(mod, x)[0], -np.roll(x.ravel(), -5).reshape(6, 4))


@pytest.mark.parametrize("shift", [3, 8, 13, -3, -8, -13])
def test_shifts_beyond_the_size_and_below_zero(shift):
    """A rotation as someone else may write it."""

    @T.prim_func(s_tir=True)
    def rotate(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.sblock("rotate"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[(vi + shift) % 8]

    mod = LowerRotations()(tvm.IRModule({"main": rotate}))
    out = tvm.runtime.tensor(np.zeros(8, "float32"))
    tvm.compile(mod, "llvm")["main"](tvm.runtime.tensor(count_up(8)), out)
    np.testing.assert_array_equal(out.numpy(), np.roll(count_up(8), -shift))
    assert division_count(mod["main"].body) == 0
