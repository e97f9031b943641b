# SPDX-License-Identifier: Apache-2.0
"""Products by matrix instructions: their CUDA, run on a CPU, beside numpy."""

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from cuda_on_cpu import run, source_of
from smartmem_tvm.schedule.gpu.matrix.matrix import GpuMatrix
from smartmem_tvm.schedule.gpu.matrix.matrix_tile import MatrixTile

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
AMPERE = tvm.target.Target({**FACTS, "arch": "sm_80"}, host="llvm")
HOPPER = tvm.target.Target({**FACTS, "arch": "sm_90a"}, host="llvm")
WARPS = (
    MatrixTile(32, 32, 32, 16, 16, 3),
    MatrixTile(16, 32, 64, 16, 32, 2, slices=2),
    MatrixTile(32, 32, 16, 32, 16, 4, splits=2),
)
GROUPS = (
    MatrixTile(64, 32, 32, 16, 32, 4, group=True),
    MatrixTile(64, 64, 64, 16, 64, 3, group=True),
    MatrixTile(128, 16, 32, 16, 16, 3, splits=3, group=True),
    MatrixTile(64, 32, 64, 16, 32, 3, slices=2, group=True),
)


TYPES = ("float16", "bfloat16", "tf32")
ROUNDING = {"float16": 2e-3, "bfloat16": 1e-2, "tf32": 2e-3}  # of the results, and of tf32's factors


def stored(kind):
    """How numbers that are multiplied in a type lie in memory."""
    return "float32" if kind == "tf32" else kind


def product(shape, left=False, right=False, finish=lambda total, *_: total, more=(), kind="float16"):
    """A kernel of batch x rows x columns x depth numbers; an operand may lie the other way round."""
    batch, rows, columns, depth = shape
    dtype = stored(kind)
    x = te.placeholder((batch, depth, rows) if left else (batch, rows, depth), dtype, "x")
    w = te.placeholder((batch, columns, depth) if right else (batch, depth, columns), dtype, "w")
    k = te.reduce_axis((0, depth), "k")

    def term(b, i, j):
        both = (x[b, k, i] if left else x[b, i, k]), (w[b, j, k] if right else w[b, k, j])
        if kind == "float16":
            return te.sum((both[0] * both[1]).astype("float32"), k)
        return te.sum(both[0].astype("float32") * both[1].astype("float32"), k)

    total = te.compute((batch, rows, columns), term, "total")
    out = te.compute(
        (batch, rows, columns), lambda b, i, j: finish(total[b, i, j], b, i, j, *more).astype(dtype), "out"
    )
    func = te.create_prim_func([x, w, *more, out])
    return func.with_attr("smartmem.factors", kind) if kind == "tf32" else func


def of_type(tile, kind):
    """A tile for halves, for as many bytes of another type."""
    return replace(tile, depth=tile.depth // 2) if kind == "tf32" else tile


def scheduled(func, tile, target):
    return GpuMatrix(tile=tile).apply(func, target).mod["main"].with_attrs({"global_symbol": "main"})


def drawn(*shape, kind="float16"):
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape)
    return numbers.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else stored(kind))


def check(func, tile, target, arrays, expected, folder, kind="float16"):
    out = np.full(expected.shape, np.nan, drawn(1, kind=kind).dtype)
    run(scheduled(func, of_type(tile, kind), target), target, {**arrays, "out": out}, folder)
    error = ROUNDING[kind]
    np.testing.assert_allclose(out.astype("float32"), expected, rtol=error, atol=error * np.abs(expected).max())


def multiplied(x, w, left=False, right=False):
    x, w = (each.astype("float32") for each in (x, w))
    return (x.swapaxes(1, 2) if left else x) @ (w.swapaxes(1, 2) if right else w)


def check_product(shape, tile, target, folder, left=False, right=False, kind="float16"):
    batch, rows, columns, depth = shape
    x = drawn(*((batch, depth, rows) if left else (batch, rows, depth)), kind=kind)
    w = drawn(*((batch, columns, depth) if right else (batch, depth, columns)), kind=kind)
    expected = multiplied(x, w, left, right)
    func = product(shape, left, right, kind=kind)
    check(func, tile, target, {"x": x, "w": w}, expected, folder, kind)


def cases(tiles, target):
    return [pytest.param(tile, target, id=f"{tile.rows}x{tile.columns}x{tile.depth}") for tile in tiles]


SOME = [*cases(WARPS[:1], AMPERE), *cases(GROUPS[:1], HOPPER)]
ALL = [*cases(WARPS, AMPERE), *cases(GROUPS, HOPPER)]


@pytest.mark.each_value
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("tile", "target"), SOME)
def test_more_rows_columns_and_terms_than_a_tile(tile, target, kind, tmp_path):
    # Groups of warps take operands of four bytes only with their terms next to each other.
    check_product((2, 70, 72, 88), tile, target, tmp_path, right=kind == "tf32" and tile.group, kind=kind)


@pytest.mark.parametrize("tile", [WARPS[0], WARPS[2]], ids=str)
def test_an_epilogue_is_rounded_once(tile, tmp_path):
    """Halves near 1024 are a whole apart: what is added there and taken away again would be gone."""
    x, w = drawn(1, 32, 32), drawn(1, 32, 32)

    def finish(total, *_):
        return total.astype("float16") + tirx.const(1024, "float16") - tirx.const(1024, "float16")

    func = product((1, 32, 32, 32), finish=finish)
    check(func, tile, AMPERE, {"x": x, "w": w}, multiplied(x, w), tmp_path)


@pytest.mark.pairwise
@pytest.mark.device
@pytest.mark.parametrize("kind", TYPES[1:])
@pytest.mark.parametrize(("tile", "target"), ALL)
@pytest.mark.parametrize(
    ("shape", "left", "right"),
    [
        ((1, 64, 64, 64), False, False),
        ((2, 72, 40, 200), False, True),
        ((1, 37, 41, 43), True, False),
        ((1, 20, 96, 96), True, True),
        ((1, 9, 17, 3), False, True),
    ],
    ids=str,
)
def test_other_types_than_half(shape, left, right, tile, target, kind, tmp_path):
    if kind == "tf32" and tile.group:
        left, right = False, True
    check_product(shape, tile, target, tmp_path, left, right, kind)


@pytest.mark.each_value
@pytest.mark.device
@pytest.mark.parametrize(("tile", "target"), ALL)
@pytest.mark.parametrize(
    ("shape", "left", "right"),
    [
        ((1, 64, 64, 64), False, False),
        ((2, 72, 40, 200), False, True),
        ((1, 37, 41, 43), True, False),
        ((1, 20, 96, 96), True, True),
    ],
    ids=str,
)
def test_any_shape_orientation_and_tile(shape, tile, target, left, right, tmp_path):
    check_product(shape, tile, target, tmp_path, left, right)


@pytest.mark.device
@pytest.mark.parametrize(("tile", "target"), ALL)
def test_an_epilogue_reads_a_bias_and_a_residual(tile, target, tmp_path):
    shape = (1, 70, 40, 64)
    bias, rest = te.placeholder((40,), "float16", "bias"), te.placeholder((1, 70, 40), "float16", "rest")

    def finish(total, b, i, j, bias, rest):
        return tirx.max(total + bias[j].astype("float32"), tirx.const(0, "float32")) + rest[b, i, j].astype("float32")

    func = product(shape, finish=finish, more=(bias, rest))
    x, w, c, r = drawn(1, 70, 64), drawn(1, 64, 40), drawn(40), drawn(1, 70, 40)
    expected = np.maximum(multiplied(x, w) + c.astype("float32"), 0) + r.astype("float32")
    check(func, tile, target, {"x": x, "w": w, "bias": c, "rest": r}, expected, tmp_path)


@pytest.mark.device
@pytest.mark.parametrize(("tile", "target"), ALL)
def test_a_padded_convolution_with_arithmetic_on_its_image(tile, target, tmp_path):
    image, weight = te.placeholder((1, 12, 9, 11), "float16", "x"), te.placeholder((24, 12, 3, 3), "float16", "w")
    relu = te.compute(image.shape, lambda *at: tirx.max(image[at], tirx.const(0, "float16")), "relu")
    wide = topi.nn.pad(relu, (0, 0, 1, 1))
    c, p, q = (te.reduce_axis((0, extent)) for extent in (12, 3, 3))

    def term(n, f, y, x):
        return te.sum((wide[n, c, y + p, x + q] * weight[f, c, p, q]).astype("float32"), (c, p, q))

    total = te.compute((1, 24, 9, 11), term, "total")
    func = te.create_prim_func([image, weight, te.compute(total.shape, lambda *at: total[at].astype("float16"), "out")])
    x, w = drawn(1, 12, 9, 11), drawn(24, 12, 3, 3)
    padded = np.pad(np.maximum(x, 0).astype("float32"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nkyxpq,fkpq->nfyx", windows, w.astype("float32"))
    check(func, tile, target, {"x": x, "w": w}, expected, tmp_path)


def test_vectors_of_eight_go_to_shared_memory_by_themselves():
    source, _ = source_of(scheduled(product((1, 64, 64, 64)), GROUPS[1], HOPPER), HOPPER)
    assert "cp_async_cg_async_cg_shared_global_16" in source and "_held" not in source
    assert "m64n64k16" in source and "__syncthreads" in source


def test_operands_of_odd_sizes_pass_through_registers():
    source, _ = source_of(scheduled(product((1, 37, 41, 43)), WARPS[0], AMPERE), AMPERE)
    assert "left_held" in source and "right_held" in source and "m16n8k16" in source


@pytest.mark.parametrize("arch", ["sm_70", "sm_75"])
def test_gpus_without_these_instructions_are_left_to_other_rules(arch):
    target = tvm.target.Target({**FACTS, "arch": arch}, host="llvm")
    assert GpuMatrix().apply(product((1, 64, 64, 64)), target) is None


def test_products_of_floats_and_of_few_rows_are_left_to_other_rules():
    x, w = te.placeholder((64, 64), "float32", "x"), te.placeholder((64, 64), "float32", "w")
    assert GpuMatrix().apply(te.create_prim_func([x, w, topi.matmul(x, w)]), HOPPER) is None
    assert GpuMatrix().apply(product((1, 4, 64, 64)), HOPPER) is None


def test_groups_of_warps_multiply_where_the_architecture_is_hopper_s_own():
    for target, wide in ((HOPPER, True), (AMPERE, False)):
        func = GpuMatrix().apply(product((1, 512, 512, 512)), target).mod["main"].with_attr("global_symbol", "main")
        source, _ = source_of(func, target)
        assert ("wgmma" in source) == wide and ("ldmatrix" in source) == (not wide)


NAMES = {"float16": "f16", "bfloat16": "bf16", "tf32": "tf32"}


def source(kind, target, shape=(1, 512, 512, 512), right=False):
    func = GpuMatrix().apply(product(shape, right=right, kind=kind), target).mod["main"]
    return source_of(func.with_attr("global_symbol", "main"), target)[0]


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_has_its_instructions(kind):
    name, terms = NAMES[kind], 8 if kind == "tf32" else 16
    assert f"mma.sync.aligned.m16n8k{terms}.row.col.f32.{name}.{name}.f32" in source(kind, AMPERE)
    wide = source(kind, HOPPER, right=True)
    assert f"k{terms}.f32.{name}.{name}" in wide and "wgmma.mma_async" in wide


def test_types_do_not_share_a_name_of_shared_memory():
    """CUDA takes one type for each, and all kernels of a model are one program."""
    found = [re.search(r"extern __shared__ .*?(\w+)\[\]", source(kind, AMPERE)).group(1) for kind in TYPES]
    assert len(set(found)) == len(TYPES)


def test_factors_of_tf32_are_rounded_and_not_cut_off():
    assert "cvt.rna.tf32.f32" in source("tf32", AMPERE) and "cvt.rna" not in source("bfloat16", AMPERE)


def test_tf32_whose_terms_lie_apart_is_for_single_warps():
    found = source("tf32", HOPPER)
    assert "wgmma" not in found and "ld.shared.b32" in found and "ldmatrix" in found


def test_a_tile_for_groups_of_warps_is_refused_where_they_cannot_multiply():
    for kind, target, right in (("tf32", HOPPER, False), ("tf32", AMPERE, True), ("bfloat16", AMPERE, False)):
        func, tile = product((1, 64, 64, 64), right=right, kind=kind), of_type(GROUPS[0], kind)
        assert GpuMatrix(tile=tile).apply(func, target) is None


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("arch", ["sm_70", "sm_75"])
def test_no_type_has_them_on_older_gpus(kind, arch):
    target = tvm.target.Target({**FACTS, "arch": arch}, host="llvm")
    assert GpuMatrix().apply(product((1, 64, 64, 64), kind=kind), target) is None


@pytest.mark.parametrize(("tile", "target"), SOME)
@pytest.mark.parametrize("stride", [1, 2])
def test_padding_is_copied_as_zeros(tile, target, stride, tmp_path):
    """Of channels that lie next to each other all are in the padding, or none."""
    rows, columns, channels, outputs = 7, 5, 16, 24
    x = te.placeholder((rows, columns, channels), "float16", "x")
    w = te.placeholder((outputs, 3, 3, channels), "float16", "w")
    p, q, c = (te.reduce_axis((0, size), name) for size, name in ((3, "p"), (3, "q"), (channels, "c")))

    def padded(i, j, k):
        inside = tirx.all(i >= 1, i <= rows, j >= 1, j <= columns)
        return tirx.if_then_else(inside, x[i - 1, j - 1, k], tirx.const(0, "float16"))

    made = te.compute((rows + 2, columns + 2, channels), padded, "padded")
    shape = ((rows - 1) // stride + 1, (columns - 1) // stride + 1, outputs)

    def term(i, j, o):
        return te.sum((made[i * stride + p, j * stride + q, c] * w[o, p, q, c]).astype("float32"), (p, q, c))

    total = te.compute(shape, term, "total")
    out = te.compute(shape, lambda i, j, o: total[i, j, o].astype("float16"), "out")
    func = te.create_prim_func([x, w, out])
    arrays = {"x": drawn(rows, columns, channels), "w": drawn(outputs, 3, 3, channels)}
    around = np.pad(arrays["x"].astype("float32"), ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (0, 1))[::stride, ::stride]
    expected = np.einsum("ijcpq,opqc->ijo", windows, arrays["w"].astype("float32"))
    check(func, tile, target, arrays, expected, tmp_path)
    source, _ = source_of(scheduled(func, tile, target), target)
    assert "left_held" not in source and "right_held" not in source
