# SPDX-License-Identifier: Apache-2.0
"""Operands of GEMMs that are joined of several tensors, or padded: vectors of phones, run by OpenCL beside numpy."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import te, tirx

from gpu_rule_checks import TARGET, check
from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.schedule.gpu.gemm.product import product_of
from smartmem_tvm.schedule.gpu.matmul.matmul import GpuMatmul
from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuMatmulParams, GpuTile, best_gpu_tile
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import Limits, parse_target

PHONE = GpuMatmulParams.of(replace(Limits.of(TARGET), device=TARGETS["adreno-740"], vector=4))
TILES = [
    GpuTile(32, 32, 16, 4, 4),
    GpuTile(64, 64, 16, 8, 8),
    GpuTile(16, 32, 32, 4, 2),
    GpuTile(32, 32, 16, 4, 4, splits=2),
    GpuTile(32, 32, 16, 4, 4, slices=2),
]


def joined(parts, axis, at, doubled):
    """The element at two indices of tensors that follow each other along an axis, the first of them stretched."""
    start, value = 0, None
    for number, part in enumerate(parts):
        inside = list(at)
        inside[axis] = at[axis] - start
        if number == 0 and doubled:
            inside[1 - axis] = inside[1 - axis] // 2
        read = part(*inside)
        value = read if value is None else tirx.if_then_else(at[axis] >= start, read, value)
        start += int(part.shape[axis])
    return value


def multiplied(sizes, axis, left, doubled=False, turned=False, rows=37, columns=44, depth=None):
    """A product one of whose operands is joined along its rows (columns) or its depth; inputs, output, reference."""
    depth = sum(sizes) if axis else depth or 32
    outer = sum(sizes) if not axis else rows if left else columns
    other = columns if left else rows
    shapes = [
        ((outer + 1) // 2 if doubled and n == 0 else outer, s) if axis else (s, depth) for n, s in enumerate(sizes)
    ]
    if not axis and doubled:
        shapes[0] = (sizes[0], (depth + 1) // 2)
    kept = [shape[::-1] if turned else shape for shape in shapes]  # in memory
    xs = [te.placeholder(shape, name=f"x{n}") for n, shape in enumerate(kept)]

    class Part:
        def __init__(self, x, shape):
            self.x, self.shape = x, shape

        def __call__(self, i, k):
            return self.x[k, i] if turned else self.x[i, k]

    parts = [Part(x, shape) for x, shape in zip(xs, shapes, strict=True)]
    w, k = te.placeholder((other, depth), name="w"), te.reduce_axis((0, depth), "k")

    def term(i, j):
        mine, theirs = (i, j) if left else (j, i)
        return joined(parts, axis, (mine, k), doubled) * w[theirs, k]

    output = te.compute((outer, other) if left else (other, outer), lambda i, j: te.sum(term(i, j), k))

    def reference(*arrays):
        *found, weight = arrays
        found = [each.T if turned else each for each in found]
        if doubled:
            along = 1 - axis
            found[0] = np.repeat(found[0], 2, along).take(range(depth if along else outer), along)
        whole = np.concatenate(found, axis)
        return whole @ weight.T if left else weight @ whole.T

    return [*xs, w], output, reference


def run(tile, *args, params=PHONE, **named):
    inputs, output, reference = multiplied(*args, **named)
    return check(lambda own: GpuMatmul(own, tile), inputs, output, reference, params)


def test_a_tensor_is_chosen_once_for_a_vector_on_phones():
    """Other GPUs keep their kernels: they choose for each element."""
    sources = [run(TILES[0], (32, 16), 1, True, params=each) for each in (PHONE, None)]
    assert ["vload4(0, x0_ptr" in each or "float4*)(x0_ptr" in each for each in sources] == [True, False]


@pytest.mark.device
@pytest.mark.each_value
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.rows}x{t.columns}x{t.depth}s{t.splits}x{t.slices}")
@pytest.mark.parametrize("sizes", [(16, 32), (4, 24, 8), (12, 20), (3, 5, 8), (17, 15), (1, 1, 62), (128, 5)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("doubled", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_any_parts(sizes, axis, left, doubled, turned, tile):
    """Parts of whole tiles, of vectors, and those that begin within one, along rows, columns and terms."""
    run(tile, sizes, axis, left, doubled, turned)


@pytest.mark.device
def test_parts_drawn_at_random():
    draw = np.random.default_rng(5)
    for _ in range(12):
        sizes = tuple(int(s) for s in draw.integers(1, 40, draw.integers(2, 5)) * draw.choice([1, 4]))
        flags = [bool(flag) for flag in draw.integers(0, 2, 4)]
        shape = {name: int(draw.integers(1, 70)) for name in ("rows", "columns", "depth")}
        run(TILES[draw.integers(len(TILES))], sizes, int(flags[0]), *flags[1:], **shape)


def test_tiles_leave_registers_for_elements_that_are_chosen_one_by_one():
    """Four tensors of which an element may come: 8 x 8 results of one slice spilled with them on a 740."""
    params = GpuMatmulParams.of(Limits.of(parse_target("adreno-740"))).in_texels()
    shape = (1, 256, 400, 512)
    plain, chosen = (best_gpu_tile(*shape, each) for each in (params, params.choosing((0, 4))))
    assert plain.thread_rows * plain.thread_columns == 64 and plain.slices == 1
    assert (
        chosen != plain
        and chosen.depth * chosen.columns // chosen.threads < plain.depth * plain.columns // plain.threads
    )
    assert GpuMatmulParams().choosing((4, 4)) == GpuMatmulParams()


def test_elements_that_come_from_several_tensors_are_counted():
    def apart(sizes, turned=False):
        inputs, output, _ = multiplied(sizes, 1, True, turned=turned)
        product = product_of(parse(te.create_prim_func([*inputs, output])))
        return product.left.apart(True), product.right.apart(True)

    assert apart((16, 16)) == apart((32,)) == (0, 0)
    assert apart((15, 17)) == apart((16, 16), turned=True) == (2, 0)
    assert apart((13, 8, 11)) == (3, 0)
