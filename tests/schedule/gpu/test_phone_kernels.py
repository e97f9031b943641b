# SPDX-License-Identifier: Apache-2.0
"""What kernels have for phones only: products of windows that are unrolled, partial results of rows in vectors."""

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from tvm import te, topi

import smartmem_tvm as sm
from clang import programs
from gpu_rule_checks import TARGET, check, scheduled, threads
from half_networks import weight
from helpers import module, op, random
from phones import phone
from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.schedule.core.reduction import reduction_of
from smartmem_tvm.schedule.gpu.attention.chain_tile import (
    ChainShape,
    GpuChainParams,
    KeptVector,
    ProductShape,
    candidates,
)
from smartmem_tvm.schedule.gpu.gemm.product import product_of
from smartmem_tvm.schedule.gpu.launch import GpuParams
from smartmem_tvm.schedule.gpu.matmul.matmul import _finished
from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuMatmulParams, GpuTile, best_gpu_tile, deepened
from smartmem_tvm.schedule.gpu.rows.rows import GpuRows
from smartmem_tvm.schedule.gpu.window.lines import Lines
from smartmem_tvm.schedule.gpu.window.window import WindowProduct, WindowSlide
from smartmem_tvm.schedule.gpu.window.window_tiles import GpuWindowParams, ProductTile, product_tile
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import Limits
from texture_modules import Program, long

PHONE = replace(Limits.of(TARGET), device=TARGETS["adreno-740"], vector=4)
ADRENO = phone("adreno-740")


def test_only_rows_of_the_table_are_phones():
    assert PHONE.phone and Limits.of(ADRENO).phone and Limits.of(phone("mali-g57")).phone
    assert not Limits.of(TARGET).phone and not Limits().phone


def convolution(channels, groups, each):
    x, w = (te.placeholder(shape) for shape in ((1, channels, 9, 11), (groups * each, channels // groups, 3, 3)))
    return [x, w], topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, groups)


@pytest.mark.parametrize(("each", "slides"), [(32, True), (36, False)])
def test_narrow_groups_slide(each, slides):
    """They go through shared memory on other GPUs."""
    inputs, output = convolution(16, 2, each)
    assert scheduled(WindowProduct(), inputs, output) is not None
    params = GpuWindowParams(PHONE)
    assert (scheduled(WindowProduct(params), inputs, output) is None) == slides
    assert scheduled(WindowSlide(params), inputs, output) is not None


def test_the_products_of_a_window_are_unrolled():
    """Nine of the 9 or 18 terms of a step, or twelve of 36, and rows are read from shared memory as vectors."""
    inputs, output = convolution(16, 1, 64)

    def source(params):
        return check(WindowProduct, inputs, output, _convolved, params)

    plain, unrolled = source(None), source(GpuWindowParams(PHONE))
    assert unrolled.count("acc_ptr[0] = ") - 1 in [n * (plain.count("acc_ptr[0] = ") - 1) for n in (9, 12)]
    assert ["__local float4" in each for each in (plain, unrolled)] == [False, True]


@pytest.mark.parametrize(
    ("outs", "tile"),
    [
        (128, ProductTile(128, 64, 18, 8, 8)),  # a window for each half of the threads
        (67, ProductTile(64, 64, 18, 8, 4)),
        (50, ProductTile(32, 64, 18, 4, 4)),
        (33, ProductTile(32, 32, 9, 4, 4)),  # 64 threads for 32 pixels: half a window for each
        (64, ProductTile(32, 32, 18, 4, 4, 2)),
    ],
)
def test_threads_gather_whole_windows(outs, tile):
    """Their places in a window are constants; those of the weights keep their term, or take the next as they come."""
    inputs, output = convolution(4, 1, outs)
    source = check(lambda params: WindowProduct(params, tile), inputs, output, _convolved, GpuWindowParams(PHONE))
    pixels = [line for line in source.splitlines() if "right_tile_ptr[" in line and " = " in line]
    assert tile.depth == 9 or not any("% 9" in line for line in pixels)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pixels", [28, 23])
def test_unrolled_terms_of_a_sliding_window_fit_into_registers(pixels, stride):
    """Where the values of all terms that other GPUs unroll would not, as Mesa loads all of them first."""
    x, w = (te.placeholder(shape) for shape in ((1, 512, pixels, pixels), (1024, 4, 3, 3)))
    output = topi.nn.group_conv2d_nchw(x, w, stride, 1, 1, 128)
    terms = []
    for params in (GpuWindowParams(replace(PHONE, device=None)), GpuWindowParams(PHONE)):
        rule = WindowSlide(params)
        nest = rule.slide(reduction_of(rule.prepare(parse(te.create_prim_func([x, w, output])))), params)
        held = Lines(nest.reduction, nest.order).held(nest.tile, nest.taps)
        terms.append((prod(nest.reduction.extents[v] for v in nest.taps), prod(nest.tile.values()) + held))
    (before, many), (after, few) = terms
    assert few <= 192 and (after < before) == (many > 192) == (stride == 1)


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["mali-g57", "adreno-660"])
@pytest.mark.parametrize("stride", [2, 1])
@pytest.mark.parametrize(("groups", "inner", "outs"), [(4, 4, 8), (2, 16, 16), (3, 5, 7), (8, 1, 1)])
def test_sliding_windows_with_fewer_unrolled_terms_are_right(name, stride, groups, inner, outs):
    inputs = [te.placeholder(shape) for shape in ((1, groups * inner, 13, 11), (groups * outs, inner, 3, 3))]
    output = topi.nn.group_conv2d_nchw(*inputs, stride, 1, 1, groups)
    params = GpuWindowParams(replace(PHONE, device=TARGETS[name]))

    def reference(x, w):
        parts = zip(np.split(x, groups, 1), np.split(w, groups), strict=True)
        return np.concatenate([_convolved(*part)[:, :, ::stride, ::stride] for part in parts], 1)

    check(lambda params: WindowSlide(params), inputs, output, reference, params)


def test_addresses_of_mali_take_registers_too():
    """Its 64 registers hold addresses of 64 bits beside sums and values."""
    x, w = (te.placeholder(shape) for shape in ((1, 512, 28, 28), (1024, 4, 3, 3)))
    output = topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, 128)
    params = GpuWindowParams(replace(PHONE, device=TARGETS["mali-g57"]))
    rule = WindowSlide(params)
    nest = rule.slide(reduction_of(rule.prepare(parse(te.create_prim_func([x, w, output])))), params)
    held = Lines(nest.reduction, nest.order).held(nest.tile, nest.taps)
    assert prod(nest.tile.values()) + held + 24 <= 64


def _convolved(x, w):
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("ncyxpq,fcpq->nfyx", view, w, optimize=True)


@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(50, 96), (7, 130), (3, 5, 31), (2, 768), (64, 64), (13, 1), (1, 10000), (9, 515)])
@pytest.mark.parametrize("reduce", ["softmax", "mean"])
def test_partial_results_in_vectors(shape, reduce):
    x = te.placeholder(shape, name="x")
    params = GpuParams.of(PHONE)
    if reduce == "softmax":

        def wanted(x):
            e = np.exp(x - x.max(-1, keepdims=True))
            return e / e.sum(-1, keepdims=True)

        check(GpuRows, [x], topi.nn.softmax(x), wanted, params)
    else:
        check(GpuRows, [x], topi.sum(x, axis=-1) / shape[-1], lambda x: x.mean(-1), params)


def test_partial_results_of_a_row_are_contiguous():
    x = te.placeholder((50, 96), name="x")
    sources = [
        check(GpuRows, [x], topi.max(x, axis=-1), lambda x: x.max(-1), params) for params in (None, GpuParams.of(PHONE))
    ]
    assert ["__local float4" in each for each in sources] == [False, True]


def drawn(seed):
    """A convolution with all of its attributes drawn; what reads it, and whether something comes before it."""
    r = np.random.RandomState(seed)
    groups, kernel = int(r.choice([1, 1, 2, 3, 4])), [int(n) for n in r.choice([1, 2, 3, 5], 2)]
    ins, outs = int(r.choice([1, 3, 4, 5, 8])), int(r.choice([5, 16, 32, 34, 36, 48, 67]))
    stride, dilation = ([int(n) for n in r.choice([1, 1, 2, 3], 2)] for _ in "12")
    pad = [int(r.randint(0, kernel[n % 2] + 1)) for n in range(4)]
    size = [max(int(r.choice([7, 13, 14, 28])), (k - 1) * d + 1) for k, d in zip(kernel, dilation, strict=True)]
    options = {"strides": stride, "padding": pad, "dilation": dilation, "groups": groups}
    before, after, batch = r.rand() < 0.5, int(r.randint(3)), int(r.choice([1, 2]))

    def build(x):
        y = op.sigmoid(x) if before else x
        y = op.nn.conv2d(y, weight(outs * groups, ins, *kernel, seed=seed), **options)
        if after == 0:
            return op.nn.relu(y)
        return op.add(op.nn.silu(y), op.mean(y, axis=[2, 3], keepdims=True)) if after == 1 else y

    return build, (batch, ins * groups, *size)


@pytest.mark.device
@pytest.mark.parametrize("seed", range(8))
def test_drawn_convolutions_in_textures(seed):
    build, shape = drawn(seed)
    mod = module(build, shape)
    made = sm.compile(mod, ADRENO)
    assert programs(made.executable.mod)
    (x,) = random(shape)
    (expected,), (got,) = sm.compile(mod).run(x), made.run(x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["adreno-660", "mali-g57", "adreno-740"])
@pytest.mark.parametrize("shape", [(2, 16000), (3, 8191), (1, 4096), (1, 65536), (5, 12000)])
def test_rows_for_which_blocks_become_smaller(shape, name):
    """Long rows that stay in registers, in blocks of fewer threads, or are read again, in loops of fewer turns."""
    x = te.placeholder(shape, name="x")
    params = GpuParams.of(replace(PHONE, device=TARGETS[name]))

    def wanted(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    g, b = (te.placeholder(shape[-1:], name=each) for each in "gb")
    output = topi.nn.layer_norm(x, g, b, [1], 1e-5)
    check(GpuRows, [x, g, b], output, lambda x, g, b: wanted(x) * g + b, params)


def test_threads_of_a_row_have_registers_for_it():
    """A block of 1,024 threads has 8 registers for each of them on a 660: 16 numbers beside those of its place."""
    x = te.placeholder((32, 16384), name="x")
    output = topi.nn.softmax(x)
    blocks = {}
    for name in ("adreno-660", "adreno-740"):
        params = GpuParams.of(replace(PHONE, device=TARGETS[name]))
        source = check(GpuRows, [x], output, lambda x: _softmax(x), params)
        blocks[name] = threads(source)
    assert blocks == {"adreno-660": 32 * 512, "adreno-740": 32 * 1024}


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["adreno-740", "adreno-618"])
@pytest.mark.parametrize("pixels", [(9, 11), (5, 7), (8, 8), (1, 13)])
@pytest.mark.parametrize("outs", [67, 128, 40])
def test_columns_that_are_stored_one_by_one_are_read_as_vectors(outs, pixels, name):
    """Neighbouring threads have neighbouring columns, which are dealt out in shared memory."""
    x, w = (te.placeholder(shape) for shape in ((2, 3, *pixels), (outs, 3, 3, 3)))
    output = topi.nn.conv2d(x, w, 1, 1, 1)
    params = GpuWindowParams(replace(PHONE, device=TARGETS[name]))
    source = check(WindowProduct, [x, w], output, _convolved, params)
    assert re.search(r"__local float[24]\*\)\(right_tile", source)


def matmul_params(name, halves=True):
    params = GpuMatmulParams.of(Limits.of(phone(name)))
    return params.of_type("float16" if halves else "float32")


@pytest.mark.parametrize(
    ("name", "tile", "depth", "deeper"),
    [
        ("adreno-740", GpuTile(128, 128, 16, 8, 8, unroll=16), 512, 32),
        ("adreno-740", GpuTile(128, 128, 16, 8, 8, unroll=16), 48, 16),  # half a tile would be zeros
        ("adreno-740", GpuTile(128, 128, 16, 8, 8, 2, unroll=16), 96, 16),
        ("adreno-740", GpuTile(128, 128, 32, 8, 8, unroll=16), 512, 32),
        ("adreno-660", GpuTile(128, 128, 16, 8, 8, unroll=16), 512, 16),  # spills as it is
        ("mali-g76", GpuTile(64, 64, 16, 4, 4, unroll=16), 512, 16),
    ],
)
def test_short_sums_of_twice_the_terms(name, tile, depth, deeper):
    assert deepened(tile, depth, matmul_params(name)) == replace(tile, depth=deeper)
    assert deepened(tile, depth, matmul_params(name, halves=False)) == tile


def test_results_that_are_stored_one_by_one_have_registers():
    """An image of the results' size is read for all of them first: 4 numbers each, 256 of 192 for 8 x 8 results."""
    params = matmul_params("adreno-660", halves=False)
    sizes = 1, 256, 1024, 256
    plain, fewer = (best_gpu_tile(*sizes, params.choosing((0, 0), finished)) for finished in (0.0, 3.0))
    assert plain.thread_rows * plain.thread_columns == 64 > fewer.thread_rows * fewer.thread_columns


@pytest.mark.parametrize(
    ("residual", "scope", "numbers"),
    [
        ((64, 16, 4), "global.texture", 0),  # texels along the columns, as results are stored
        ((16, 64, 4), "global.texture", 5),  # along the rows: a texel is read for each result
        ((16, 64, 4), "global", 0),
    ],
)
def test_images_in_another_order_need_registers_for_each_result(residual, scope, numbers):
    def compute(left, right, other):
        k = te.reduce_axis((0, 32))
        product = te.compute(
            long((64, 16, 4)), lambda i, j, lane: te.sum(left[i, k] * right[k, 4 * j + lane], axis=k), name="product"
        )
        along = (
            (lambda i, j, lane: other[i, j, lane])
            if residual[0] == 64
            else (lambda i, j, lane: other[i // 4, 4 * j + lane, i % 4])
        )
        return te.compute(long((64, 16, 4)), lambda *at: product(*at) + along(*at), name="sum")

    program = Program()
    operands = program.input((64, 32)), program.input((32, 64)), program.input(residual, scope=scope)
    mod = program.module(program.kernel(compute, *operands, scope="global.texture", schedule=lambda func: func))
    (kernel,) = (func for gvar, func in mod.functions.items() if gvar.name_hint != "main")
    assert _finished(product_of(parse(kernel))) == numbers


@pytest.mark.parametrize(("name", "factor", "terms"), [("adreno-740", "float16", 36), ("adreno-740", "float32", 18)])
def test_the_largest_tile_gathers_several_windows(name, factor, terms):
    """In float32 two thread blocks would not have room in a core's local memory."""
    params = GpuWindowParams.of(Limits.of(phone(name))).of_type(factor)
    tile = product_tile(1, 256, 4096, 9 * 256, 9, params)
    assert (tile.thread_rows, tile.thread_columns, tile.depth) == (8, 8, terms)


def test_gathered_matrices_of_a_chain_take_registers():
    """Places of their elements are read from memory, during the work on rows before them."""
    products = (ProductShape(64, 32, arranged=True), ProductShape(32, 64, arranged=False))
    plain = ChainShape(196, 64, products, (KeptVector(64, (0,), (1,)),), 2, 64)
    gathered = replace(plain, products=tuple(replace(each, gathered=True) for each in products))
    params = GpuChainParams.of(Limits.of(phone("adreno-660")))
    many, few = (candidates(1, shape, 32, 128, 1 << 14, params) for shape in (plain, gathered))
    assert set(few) < set(many) and few
    elsewhere = GpuChainParams.of(Limits.of(TARGET))
    assert candidates(1, plain, 32, 128, 1 << 14, elsewhere) == candidates(1, gathered, 32, 128, 1 << 14, elsewhere)
