# SPDX-License-Identifier: Apache-2.0
"""Products of bytes by matrix instructions: their CUDA, run on a CPU, equals numpy to the bit."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from cuda_on_cpu import run, source_of
from smartmem_tvm.schedule.gpu.matmul.matmul import GpuMatmul
from smartmem_tvm.schedule.gpu.matrix.matrix import GpuMatrix
from smartmem_tvm.schedule.gpu.matrix.matrix_tile import MatrixTile

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
AMPERE = tvm.target.Target({**FACTS, "arch": "sm_80"}, host="llvm")
HOPPER = tvm.target.Target({**FACTS, "arch": "sm_90a"}, host="llvm")
TILES = (
    (MatrixTile(32, 32, 64, 16, 16, 3), AMPERE),
    (MatrixTile(16, 32, 128, 16, 32, 2, slices=2), AMPERE),
    (MatrixTile(32, 32, 32, 32, 16, 4, splits=2), AMPERE),
    (MatrixTile(64, 32, 64, 16, 32, 4, group=True), HOPPER),
    (MatrixTile(128, 16, 64, 16, 16, 3, splits=2, group=True), HOPPER),
    (MatrixTile(64, 32, 128, 16, 32, 3, slices=2, group=True), HOPPER),
)
TYPES = [(one, other) for one in ("uint8", "int8") for other in ("uint8", "int8")]
INTEGER = "int32"


def drawn(rng, dtype, *shape):
    """Bytes, half of them at an end of their type: sums of those are the largest."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    numbers = rng.integers(low, high + 1, shape)
    return np.where(rng.random(shape) < 0.5, numbers, rng.choice([low, high], shape)).astype(dtype)


def product(shape, kinds, left=False, right=False, finish=lambda total, *_: total, more=(), out=INTEGER):
    """A kernel of batch x rows x columns x depth numbers; an operand may lie the other way round."""
    batch, rows, columns, depth = shape
    x = te.placeholder((batch, depth, rows) if left else (batch, rows, depth), kinds[0], "x")
    w = te.placeholder((batch, columns, depth) if right else (batch, depth, columns), kinds[1], "w")
    k = te.reduce_axis((0, depth), "k")

    def term(b, i, j):
        both = (x[b, k, i] if left else x[b, i, k]), (w[b, j, k] if right else w[b, k, j])
        return te.sum(both[0].astype(INTEGER) * both[1].astype(INTEGER), k)

    total = te.compute((batch, rows, columns), term, "total")
    last = te.compute(total.shape, lambda *at: finish(total[at], *at, *more).astype(out), "out")
    return te.create_prim_func([x, w, *more, last])


def scheduled(func, tile, target):
    return GpuMatrix(tile=tile).apply(func, target).mod["main"].with_attrs({"global_symbol": "main"})


def check(func, tile, target, arrays, expected, folder):
    out = np.full(expected.shape, 77, expected.dtype)
    run(scheduled(func, tile, target), target, {**arrays, "out": out}, folder)
    np.testing.assert_array_equal(out, expected)


def multiplied(x, w, left=False, right=False):
    x, w = (each.astype(INTEGER) for each in (x, w))
    return (x.swapaxes(1, 2) if left else x) @ (w.swapaxes(1, 2) if right else w)


def operands(rng, shape, kinds, left, right):
    batch, rows, columns, depth = shape
    x = drawn(rng, kinds[0], *((batch, depth, rows) if left else (batch, rows, depth)))
    return x, drawn(rng, kinds[1], *((batch, columns, depth) if right else (batch, depth, columns)))


SHAPES = [
    ((1, 64, 64, 128), False, True),
    ((2, 70, 40, 200), False, False),
    ((1, 37, 41, 43), True, False),
    ((1, 20, 96, 96), True, True),
    ((1, 9, 17, 3), False, True),
    ((3, 8, 8, 1), False, True),
]


def _check_product(shape, left, right, kinds, tile, target, folder):
    x, w = operands(np.random.default_rng(sum(shape)), shape, kinds, left, right)
    func = product(shape, kinds, left, right)
    check(func, tile, target, {"x": x, "w": w}, multiplied(x, w, left, right), folder)


@pytest.mark.parametrize(
    ("shape", "left", "right", "kinds", "tile"),
    [
        (*SHAPES[1], TYPES[1], TILES[0]),
        (*SHAPES[0], TYPES[2], TILES[3]),
        (*SHAPES[2], TYPES[3], TILES[3]),
        (*SHAPES[4], TYPES[0], TILES[2]),
    ],
    ids=str,
)
def test_sums_are_exact(shape, left, right, kinds, tile, tmp_path):
    _check_product(shape, left, right, kinds, *tile, tmp_path)


@pytest.mark.pairwise
@pytest.mark.device
@pytest.mark.parametrize("kinds", TYPES, ids="-".join)
@pytest.mark.parametrize(("tile", "target"), TILES, ids=lambda each: str(getattr(each, "rows", "")))
@pytest.mark.parametrize(("shape", "left", "right"), SHAPES, ids=str)
def test_any_type_shape_orientation_and_tile(shape, left, right, kinds, tile, target, tmp_path):
    _check_product(shape, left, right, kinds, tile, target, tmp_path)


@pytest.mark.parametrize("tile", [TILES[0], TILES[3]], ids=str)
def test_results_are_quantized_to_the_bit(tile, tmp_path):
    """A bias, a residual and an activation in float32; many quotients are at ties, which go to the even number."""
    rng, (rows, columns, depth), scale = np.random.default_rng(5), (40, 36, 32), np.float32(0.37)
    bias = te.placeholder((columns,), "float32", "bias")
    rest = te.placeholder((1, rows, columns), "uint8", "rest")
    step, zero = te.placeholder((1,), "float32", "step"), te.placeholder((1,), "uint8", "zero")

    def finish(total, b, i, j, bias, rest, step, zero):
        value = total.astype("float32") * tirx.const(0.5, "float32") * step[0] + bias[j]
        value = tirx.max(value, tirx.const(-3000, "float32")) + (rest[b, i, j].astype("float32") * step[0])
        number = tirx.nearbyint(value / step[0]) + zero[0].astype("float32")
        number = tirx.min(tirx.max(number, tirx.const(0, "float32")), tirx.const(255, "float32"))
        return number.astype(INTEGER)

    func = product((1, rows, columns, depth), TYPES[1], finish=finish, more=(bias, rest, step, zero), out="uint8")
    x, w = rng.integers(0, 8, (1, rows, depth)).astype("uint8"), rng.integers(-7, 8, (1, depth, columns)).astype("int8")
    c, r = np.zeros(columns, "float32"), drawn(rng, "uint8", 1, rows, columns)
    value = multiplied(x, w).astype("float32") * np.float32(0.5) * scale + c
    value = np.maximum(value, np.float32(-3000)) + r.astype("float32") * scale
    expected = np.clip(np.rint(value / scale) + 77, 0, 255).astype("uint8")
    arrays = {"x": x, "w": w, "bias": c, "rest": r, "step": np.array([scale]), "zero": np.array([77], "uint8")}
    check(func, *tile, arrays, expected, tmp_path)


@pytest.mark.parametrize(
    ("tile", "stride", "zero", "channels"),
    [
        pytest.param(TILES[0], 1, 0, 16, marks=pytest.mark.device),
        (TILES[3], 2, 77, 16),
        (TILES[4], 1, 128, 4),
        pytest.param(TILES[1], 2, 200, 8, marks=pytest.mark.device),
        pytest.param(TILES[0], 1, 3, 5, marks=pytest.mark.device),
    ],
    ids=str,
)
def test_padding_is_the_zero_point(tile, stride, zero, channels, tmp_path):
    """Channels lie next to each other: of four and more, copies bring them to shared memory, or fill in the padding."""
    rng, rows, columns, outputs = np.random.default_rng(channels), 7, 5, 24
    x = te.placeholder((rows, columns, channels), "uint8", "x")
    w = te.placeholder((outputs, 3, 3, channels), "int8", "w")
    p, q, c = (te.reduce_axis((0, size), name) for size, name in ((3, "p"), (3, "q"), (channels, "c")))

    def padded(i, j, k):
        inside = tirx.all(i >= 1, i <= rows, j >= 1, j <= columns)
        return tirx.if_then_else(inside, x[i - 1, j - 1, k], tirx.const(zero, "uint8"))

    made = te.compute((rows + 2, columns + 2, channels), padded, "padded")
    shape = ((rows - 1) // stride + 1, (columns - 1) // stride + 1, outputs)

    def term(i, j, o):
        one = made[i * stride + p, j * stride + q, c].astype(INTEGER)
        return te.sum(one * w[o, p, q, c].astype(INTEGER), (p, q, c))

    func = te.create_prim_func([x, w, te.compute(shape, term, "out")])
    arrays = {"x": drawn(rng, "uint8", rows, columns, channels), "w": drawn(rng, "int8", outputs, 3, 3, channels)}
    around = np.pad(arrays["x"].astype(INTEGER), ((1, 1), (1, 1), (0, 0)), constant_values=zero)
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (0, 1))[::stride, ::stride]
    expected = np.einsum("ijcpq,opqc->ijo", windows, arrays["w"].astype(INTEGER)).astype(INTEGER)
    check(func, *tile, arrays, expected, tmp_path)
    source, _ = source_of(scheduled(func, *tile), tile[1])
    assert ("left_held" in source) == (channels == 5)


# -- register tiles of threads ----------------------------------------------------------------------------------------


def in_threads(func, target=AMPERE):
    return GpuMatmul().apply(func, target).mod["main"].with_attrs({"global_symbol": "main"})


def _check_quads(shape, left, right, kinds, folder):
    x, w = operands(np.random.default_rng(sum(shape)), shape, kinds, left, right)
    expected = multiplied(x, w, left, right)
    out = np.full(expected.shape, 77, expected.dtype)
    func = in_threads(product(shape, kinds, left, right))
    run(func, AMPERE, {"x": x, "w": w, "out": out}, folder)
    np.testing.assert_array_equal(out, expected)
    assert "dp4a" in source_of(func, AMPERE)[0]


@pytest.mark.parametrize(
    ("shape", "left", "right", "kinds"),
    [(*SHAPES[1], TYPES[0]), (*SHAPES[2], TYPES[1]), (*SHAPES[3], TYPES[2]), ((1, 4, 32, 70), False, True, TYPES[3])],
    ids=str,
)
def test_threads_multiply_four_bytes_at_once(shape, left, right, kinds, tmp_path):
    _check_quads(shape, left, right, kinds, tmp_path)


@pytest.mark.pairwise
@pytest.mark.device
@pytest.mark.parametrize("kinds", TYPES, ids="-".join)
@pytest.mark.parametrize(("shape", "left", "right"), [*SHAPES, ((1, 4, 32, 70), False, True)], ids=str)
def test_quads_of_any_type_shape_and_orientation(shape, left, right, kinds, tmp_path):
    _check_quads(shape, left, right, kinds, tmp_path)
