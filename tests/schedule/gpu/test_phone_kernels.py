# SPDX-License-Identifier: Apache-2.0
"""What kernels have for phones only: products of windows that are unrolled, partial results of rows in vectors."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from tvm import te, topi

import smartmem_tvm as sm
from clang import programs
from gpu_rule_checks import TARGET, check, scheduled
from half_networks import weight
from helpers import module, op, random
from phones import phone
from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.schedule.core.reduction import reduction_of
from smartmem_tvm.schedule.gpu.launch import GpuParams
from smartmem_tvm.schedule.gpu.rows.rows import GpuRows
from smartmem_tvm.schedule.gpu.window.lines import Lines
from smartmem_tvm.schedule.gpu.window.window import WindowProduct, WindowSlide
from smartmem_tvm.schedule.gpu.window.window_tiles import GpuWindowParams, ProductTile
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import Limits

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
