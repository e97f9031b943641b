# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling on a grid of threads against numpy, on an OpenCL device."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi

from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.schedule.choose import window_rules
from smartmem_tvm.schedule.gpu.window.window import GpuWindowParams, WindowProduct, WindowSlide
from smartmem_tvm.schedule.gpu.window.window_tiles import ProductTile, SlideTile, depth_step, product_tile, slide_tile
from smartmem_tvm.target import Limits, device_of, parse_target

TARGET = parse_target("opencl")
PRODUCT, SLIDE = "WindowProduct", "WindowSlide"


def check(inputs, output, reference, rules):
    """Schedule with `rules`, run and compare with numpy; returns the OpenCL source."""
    device = device_of(TARGET)
    func = te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main")
    with TARGET:
        mod = ScheduleKernels(rules)(tvm.IRModule({"main": func}))
    assert mod["main"].attrs["tirx.is_scheduled"]
    built = tvm.compile(mod, TARGET)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal([int(d) for d in t.shape]).astype(str(t.dtype)) for t in inputs]
    result = tvm.runtime.tensor(np.full([int(d) for d in output.shape], 7, str(output.dtype)), device)
    built["main"](*(tvm.runtime.tensor(a, device) for a in arrays), result)
    expected = reference(*arrays)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=2e-5 * max(1, np.abs(expected).max()))
    (kernels,) = built.mod.imports
    source = kernels.inspect_source()
    assert source.count("// Function: ") == 1
    return source


def family(inputs, output) -> str:
    """Which of the two rules answers."""
    func = te.create_prim_func([*inputs, output])
    return next((rule.name for rule in window_rules() if rule.apply(func, TARGET) is not None), "")


def tensor(name, *shape):
    return te.placeholder(shape, name=name)


def windows(x, size, stride=1, pad=0, dilation=1, fill=0.0):
    """[batch, channel, row, column, place in the window]"""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    span = (size - 1) * dilation + 1
    view = np.lib.stride_tricks.sliding_window_view(x, (span, span), (2, 3))
    return view[:, :, ::stride, ::stride, ::dilation, ::dilation]


def convolution(x, w, stride=1, pad=0, dilation=1, groups=1):
    parts = [
        np.einsum("ncyxpq,fcpq->nfyx", windows(a, w.shape[2], stride, pad, dilation), b, optimize=True)
        for a, b in zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True)
    ]
    return np.concatenate(parts, 1)


def conv(shape, channels, size, stride=1, pad=0, dilation=1, groups=1):
    """Inputs, output and reference of a convolution."""
    x, w = tensor("x", *shape), tensor("w", channels, shape[1] // groups, size, size)
    if groups == 1:
        output = topi.nn.conv2d_nchw(x, w, stride, pad, dilation)
    else:
        output = topi.nn.group_conv2d_nchw(x, w, stride, pad, dilation, groups)
    return [x, w], output, lambda x, w: convolution(x, w, stride, pad, dilation, groups)


DENSE = {
    "3x3": ((1, 16, 14, 14), 32, 3, 1, 1),
    "primes": ((1, 13, 11, 17), 19, 3, 1, 1),
    "two images": ((2, 5, 7, 9), 17, 3, 1, 1),
    "strided": ((1, 8, 15, 15), 24, 3, 2, 1),
    "stem": ((1, 3, 40, 40), 20, 7, 2, 3),
    "patches of 4": ((1, 3, 24, 24), 48, 4, 4, 0),
    "patches of 16": ((1, 3, 48, 48), 40, 16, 16, 0),
    "dilated": ((1, 6, 16, 16), 16, 3, 1, 2, 2),
    "dilated and strided": ((1, 6, 19, 19), 16, 3, 2, 2, 2),
    "one channel": ((1, 1, 9, 9), 16, 3, 1, 1),
    "one row of pixels": ((1, 4, 3, 30), 16, 3, 1, 0),
    "groups": ((1, 32, 9, 9), 64, 3, 1, 1, 1, 2),
    "strided groups": ((1, 96, 12, 12), 96, 3, 2, 1, 1, 4),
}


@pytest.mark.device
@pytest.mark.parametrize("case", DENSE)
def test_convolution_with_many_channels(case):
    inputs, output, reference = conv(*DENSE[case])
    assert family(inputs, output) == PRODUCT
    assert "barrier" in check(inputs, output, reference, window_rules())


NARROW = {
    "depthwise 3x3": ((1, 8, 6, 6), 8, 3, 1, 1, 1, 8),
    "depthwise 7x7": ((1, 6, 14, 14), 6, 7, 1, 3, 1, 6),
    "depthwise of primes": ((2, 5, 11, 13), 5, 5, 1, 2, 1, 5),
    "depthwise, strided": ((1, 7, 17, 17), 7, 3, 2, 1, 1, 7),
    "depthwise, dilated": ((1, 4, 16, 16), 4, 3, 1, 2, 2, 4),
    "depthwise, one row": ((1, 9, 3, 10), 9, 3, 1, 0, 1, 9),
    "two channels each": ((1, 4, 8, 8), 8, 3, 1, 1, 1, 4),
    "groups of 4": ((1, 32, 14, 14), 32, 3, 1, 1, 1, 8),
    "strided groups of 4": ((1, 16, 14, 14), 16, 3, 2, 1, 1, 4),
    "few channels": ((1, 16, 12, 12), 4, 3, 1, 1),
}


@pytest.mark.device
@pytest.mark.parametrize("case", NARROW)
def test_convolution_with_few_channels_for_an_input(case):
    inputs, output, reference = conv(*NARROW[case])
    assert family(inputs, output) == SLIDE
    assert "barrier" not in check(inputs, output, reference, window_rules())


TILES = [
    ProductTile(16, 32, 9, 2, 2),
    ProductTile(64, 64, 18, 8, 4),
    ProductTile(64, 64, 8, 8, 8),
    ProductTile(32, 32, 7, 4, 2, 2),
    ProductTile(32, 32, 18, 4, 4, 4),
    ProductTile(16, 16, 9, 2, 4, 8),
]


@pytest.mark.device
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_of_a_product(tile):
    inputs, output, reference = conv((1, 20, 13, 15), 37, 3, 1, 1)
    check(inputs, output, reference, [WindowProduct(tile=tile)])


@pytest.mark.device
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("tile", [SlideTile(1, 1, 1, 1, 32), SlideTile(4, 2, 4, 9, 64), SlideTile(16, 1, 2, 36, 128)])
def test_tiles_of_a_slide(tile, groups):
    inputs, output, reference = conv((1, 16, 12, 16), 16, 3, 1, 1, 1, groups)
    check(inputs, output, reference, [WindowSlide(tile=tile)])


def test_neighbours_read_an_input_once():
    """Four results of a 3x3 window: 6 inputs in each of 3 rows and 9 weights, not 36 of each."""
    inputs, output, reference = conv((1, 4, 8, 8), 4, 3, 1, 1, 1, 4)
    source = check(inputs, output, reference, [WindowSlide(tile=SlideTile(4, 1, 1, 9, 32))])
    assert source.count("x_ptr[") == 18
    assert "value_ptr[27]" in source


def test_padding_bias_activation_and_residual_are_in_the_kernel():
    inputs, product, reference = conv((1, 16, 10, 10), 16, 3, 1, 1)
    bias, residual = tensor("bias", 1, 16, 1, 1), tensor("residual", 1, 16, 10, 10)
    output = topi.add(topi.nn.relu(topi.add(product, bias)), residual)

    def whole(x, w, bias, residual):
        return np.maximum(reference(x, w) + bias, 0) + residual

    check([*inputs, bias, residual], output, whole, window_rules())


@pytest.mark.parametrize(("groups", "rule"), [(1, PRODUCT), (16, SLIDE)])
def test_element_wise_work_before_the_padding_is_in_the_kernel(groups, rule):
    x, w = tensor("x", 1, 16, 10, 10), tensor("w", 16, 16 // groups, 3, 3)
    before = topi.multiply(x, topi.sigmoid(x))
    output = (
        topi.nn.group_conv2d_nchw(before, w, 1, 1, 1, groups) if groups > 1 else topi.nn.conv2d_nchw(before, w, 1, 1, 1)
    )
    assert family([x, w], output) == rule

    def reference(x, w):
        return convolution(x / (1 + np.exp(-x)), w, 1, 1, 1, groups)

    check([x, w], output, reference, window_rules())


@pytest.mark.parametrize("groups", [1, 16])
def test_a_permuted_result(groups):
    inputs, product, reference = conv((1, 16, 9, 9), 16, 3, 1, 1, 1, groups)
    output = topi.nn.relu(topi.transpose(product, (0, 2, 3, 1)))
    check(inputs, output, lambda x, w: np.maximum(reference(x, w), 0).transpose(0, 2, 3, 1), window_rules())


def test_an_input_with_its_channels_last():
    x, w = tensor("x", 1, 12, 12, 24), tensor("w", 32, 24, 2, 2)
    c, p, q = (te.reduce_axis((0, n)) for n in (24, 2, 2))

    def product(n, f, y, z):
        return te.sum(x[n, y * 2 + p, z * 2 + q, c] * w[f, c, p, q], [c, p, q])

    output = te.compute((1, 32, 6, 6), product)
    assert family([x, w], output) == PRODUCT
    check([x, w], output, lambda x, w: convolution(x.transpose(0, 3, 1, 2), w, 2), window_rules())


def test_depthwise_with_channels_last():
    """Channels are what neighbouring threads differ in."""
    x, w = tensor("x", 9, 10, 20), tensor("w", 3, 3, 20)
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")
    output = te.compute((7, 8, 20), lambda y, z, c: te.sum(x[y + p, z + q, c] * w[p, q, c], [p, q]))

    def reference(x, w):
        return np.einsum("yxcpq,pqc->yxc", np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(0, 1)), w)

    assert family([x, w], output) == SLIDE
    check([x, w], output, reference, window_rules())


@pytest.mark.parametrize(("channels", "rule"), [(24, PRODUCT), (4, SLIDE)])
def test_transposed_convolution(channels, rule):
    x, w = tensor("x", 1, 6, 5, 7), tensor("w", 6, channels, 4, 4)
    output = topi.nn.conv2d_transpose_nchw(x, w, (2, 2), (1, 1, 1, 1), "float32", (0, 0))

    def reference(x, w):
        result = np.zeros((1, channels, 12, 16), "float32")
        for y, z in np.ndindex(5, 7):
            result[0, :, 2 * y : 2 * y + 4, 2 * z : 2 * z + 4] += np.einsum("c,cfpq->fpq", x[0, :, y, z], w)
        return result[:, :, 1:-1, 1:-1]

    assert family([x, w], output) == rule
    check([x, w], output, reference, window_rules())


@pytest.mark.each_value
@pytest.mark.parametrize(("size", "stride", "pad"), [(2, 2, 0), (3, 1, 1), (3, 2, 1), (5, 1, 2)])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling(kind, size, stride, pad):
    x = tensor("x", 2, 3, 13, 14)
    output = topi.nn.pool2d(topi.nn.relu(x), [size] * 2, [stride] * 2, [1, 1], [pad] * 4, kind, count_include_pad=True)

    def reference(x):
        view = windows(np.maximum(x, 0), size, stride, pad, fill=-np.inf if kind == "max" else 0)
        return view.max((4, 5)) if kind == "max" else view.mean((4, 5))

    assert family([x], output) == SLIDE
    check([x], output, reference, window_rules())


def test_a_product_without_a_window_is_another_rules_business():
    x, w = tensor("x", 40, 24), tensor("w", 24, 50)
    assert family([x, w], topi.matmul(x, w)) == ""
    inputs, output, _ = conv((1, 16, 8, 8), 32, 1)
    assert family(inputs, output) == ""


def test_heads_of_an_attention_are_no_window():
    """The head and the term meet in an index, but the head belongs to both operands."""
    x, k = tensor("x", 1, 9, 96), te.reduce_axis((0, 16), "k")
    output = te.compute((2, 9, 9), lambda h, i, j: te.sum(x[0, i, h * 16 + k] * x[0, j, 32 + h * 16 + k], k))
    assert family([x], output) == ""


def test_row_statistics_and_plain_maps_are_no_windows():
    x = tensor("x", 6, 10)
    assert family([x], topi.nn.softmax(x)) == ""
    assert family([x], topi.sum(x, axis=1)) == ""
    assert family([x], topi.exp(x)) == ""


def test_a_long_row_cut_in_pieces_is_no_window():
    x, k = tensor("x", 6400), te.reduce_axis((0, 100), "k")
    assert family([x], te.compute((64,), lambda i: te.sum(x[i * 100 + k], k))) == ""


def test_other_targets_and_unknown_functions_are_left_alone():
    inputs, output, _ = conv((1, 16, 8, 8), 16, 3, 1, 1)
    func = te.create_prim_func([*inputs, output])
    cpu = tvm.target.Target("llvm")
    assert all(rule.apply(func, cpu) is None for rule in window_rules())
    scheduled = WindowProduct().apply(func, TARGET).mod["main"]
    assert all(rule.apply(scheduled, TARGET) is None for rule in window_rules())


def test_a_step_is_whole_windows_or_an_even_part_of_one():
    assert depth_step(576, 9) == 9
    assert depth_step(384, 4) == 16
    assert depth_step(147, 49) == 49
    assert depth_step(768, 256) == 16
    assert depth_step(5, 1) == 5


@pytest.mark.parametrize("rows", [1, 7, 16, 64, 768])
@pytest.mark.parametrize("columns", [1, 49, 196, 12544])
def test_tiles_fit_the_device(rows, columns):
    params = GpuWindowParams.of(Limits(128, 16 * 1024))
    for depth, window in ((9, 9), (147, 49), (768, 256), (1536, 4)):
        tile = product_tile(1, rows, columns, depth, window, params)
        assert tile.threads <= 128
        assert tile.shared_bytes <= 16 * 1024


def test_small_products_cut_the_sum_in_slices():
    """What has too few results for the threads of the device gets the rest from the depth."""
    assert product_tile(1, 768, 49, 1536, 4, GpuWindowParams()).slices > 1
    assert product_tile(1, 64, 160 * 160, 27, 9, GpuWindowParams()).slices == 1


def test_the_number_of_threads_is_the_targets():
    narrow = parse_target('{"kind": "opencl", "max_num_threads": 64, "max_threads_per_block": 64}')
    inputs, output, _ = conv((1, 16, 20, 20), 64, 3, 1, 1)
    schedule = WindowProduct().apply(te.create_prim_func([*inputs, output]), narrow)
    extents = {}

    def visit(loop):
        if loop.thread_binding is not None:
            extents[str(loop.thread_binding.thread_tag)] = int(loop.extent)

    tvm_ffi.structural_walk(schedule.mod["main"].body, (tirx.For, visit))
    assert extents["threadIdx.x"] <= 64


def test_a_chain_that_would_grow_without_end_is_left_alone():
    x = tensor("x", 1, 8, 8, 8)
    value = x
    for _ in range(12):
        value = topi.multiply(topi.add(value, value), value)
    w = tensor("w", 16, 8, 3, 3)
    assert family([x, w], topi.nn.conv2d_nchw(value, w, 1, 1, 1)) == ""


def test_params_read_the_row_of_the_device():
    targets = (parse_target("mali-g57"), tvm.target.Target("opencl"))
    mali, generic = (GpuWindowParams.of(Limits.of(target)) for target in targets)
    assert (mali.limits.processors, mali.limits.registers, mali.busy) == (2, 64, 512)
    assert (generic.limits.processors, generic.limits.registers) == (132, 255)
    for depth in (27, 576, 4608):
        assert product_tile(1, 64, 56 * 56, depth, 9, mali).values < 64
    assert slide_tile(56, 56, 96, 96 * 56 * 56, mali).taps <= 64 - 16
