# SPDX-License-Identifier: Apache-2.0
"""Products on many threads: tiles and tasks by when the last thread is done, copies that threads share."""

import numpy as np
import pytest
from tvm import te, tirx

from schedule.cpu.test_matmul import f32, matmul, with_rows
from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.schedule.cpu.matmul import Matmul
from smartmem_tvm.schedule.cpu.matmul_plan import MatmulPlan
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.schedule.cpu.tile import Tile, best_tile

AVX512 = CpuParams(lanes=16, registers=32, cores=16)
ONE = CpuParams(lanes=16, registers=32, cores=1)


def rectified(rows, depth, columns):
    """A product whose left operand is computed, so that it is copied."""
    x, w = te.placeholder((rows, depth), name="x"), te.placeholder((depth, columns), name="w")
    k = te.reduce_axis((0, depth), "k")
    return [x, w], te.compute((rows, columns), lambda i, j: te.sum(tirx.max(x[i, k], f32(0.0)) * w[k, j], k), "out")


def plan_of(inputs, output, params) -> MatmulPlan:
    kernel = Matmul().prepare(parse(te.create_prim_func([*inputs, output])))
    return Matmul.plan(kernel, params, (kernel.inputs[1],))


@pytest.mark.parametrize(
    "shape", [(96, 864, 1225), (289, 1344, 224), (64, 1280, 448), (289, 1024, 384), (1, 2048, 1000)]
)
def test_no_tile_leaves_most_threads_idle(shape):
    """64 columns of 1225 are 20 panels: two for some of 16 threads and none for others, 1.6 times what is needed."""
    rows, depth, columns = shape
    plan = with_rows(rows, matmul(rows, depth, columns), AVX512)
    chunks = plan.row_chunks.count * plan.panel_chunks.count
    assert plan.tasks.idle < 1.5 and chunks >= 12


def test_one_thread_takes_the_tile_that_wastes_least():
    for rows, depth, columns in ((96, 864, 1225), (289, 1344, 224), (3136, 96, 384)):
        plan = with_rows(rows, matmul(rows, depth, columns), ONE)
        assert plan.tile == best_tile(rows, columns, ONE, depth) and plan.tasks.idle == 1.0


def test_of_tasks_that_are_as_good_the_fewest():
    plan = with_rows(196, matmul(196, 1152, 320), ONE)
    assert plan.parts == (1, 1)


@pytest.mark.parametrize(("rows", "shared"), [(289, True), (7, False)])
def test_what_several_tasks_copy_is_copied_once(rows, shared, check):
    """Unless it is less than waking the threads."""
    inputs, output = rectified(rows, 1000, 330)
    plan = plan_of(inputs, output, AVX512)
    assert plan.left_packed and plan.left_shared == shared
    assert not plan_of(inputs, output, ONE).left_shared
    check(inputs, output, lambda x, w: np.maximum(x, 0) @ w, "Matmul", params=AVX512)


def test_copies_of_a_batch_are_shared(check):
    x, w = te.placeholder((3, 64, 700), name="x"), te.placeholder((3, 700, 650), name="w")
    k = te.reduce_axis((0, 700), "k")
    output = te.compute(
        (3, 64, 650), lambda b, i, j: te.sum(tirx.max(x[b, i, k], f32(0.0)) * w[b, k, j], k), name="out"
    )
    assert plan_of([x, w], output, AVX512).left_shared
    check([x, w], output, lambda x, w: np.maximum(x, 0) @ w, "Matmul", params=AVX512)


@pytest.mark.parametrize("columns", [320, 330])
def test_a_thread_that_has_one_panel_prefetches_its_parts(check, columns):
    rows, depth, width = 64, 1100, 64
    params = CpuParams(lanes=16, registers=32, cores=16, tile_rows=(6,), tile_vectors=(4,))
    a, k = te.placeholder((rows, depth), name="a"), te.reduce_axis((0, depth), "k")
    b = te.placeholder((-(-columns // width), depth, width), name="b")
    output = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[j // width, k, j % width], k), name="out")
    plan = with_rows(rows, ([a, b], output), params)
    assert plan.tile == Tile(6, 64) and plan.in_panels
    assert plan.panel_chunks.length == 1 and plan.depth_parts == 5
    assert with_rows(rows, ([a, b], output), ONE).depth_parts == 1

    def reference(a, b):
        return a @ b.swapaxes(0, 1).reshape(depth, -1)[:, :columns]

    check([a, b], output, reference, "Matmul", params=params)
