# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions and pools against numpy: both orders of memory, strides, padding, sizes no vector divides."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from covering import pairs, singles
from smartmem_tvm.schedule import CpuParams, ScheduleKernels
from smartmem_tvm.schedule.core.rule import record_on

# batch, channels, height, width; window, stride, padding, dilation
SHAPES = [
    (1, 1, 4, 4, 3, 1, 1, 1),
    (2, 3, 7, 7, 7, 1, 3, 1),
    (1, 5, 13, 29, 5, 2, 2, 1),
    (1, 2, 20, 33, 3, 1, 1, 2),
    (3, 4, 9, 6, 3, 3, 0, 1),
    (1, 6, 8, 17, 2, 2, 0, 1),
]
PARAMS = {
    "one task": CpuParams(lanes=16, registers=32, cores=1),
    "many tasks, small bands": CpuParams(lanes=4, cores=8, serial_below=1, panel_bytes=512),
}


def windows(x, size, stride, pad, dilation, fill=0.0):
    """Channels first: (batch, channels, height, width, size, size)."""
    reach = dilation * (size - 1) + 1
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    seen = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), axis=(2, 3))
    return seen[:, :, ::stride, ::stride, ::dilation, ::dilation]


def rule_of(inputs, output) -> str:
    func = te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main")
    with tvm.target.Target("llvm"):
        return record_on(ScheduleKernels()(tvm.IRModule({"main": func}))["main"])["name"]


def channels_first(shape, dtype="float32"):
    """With a bias, a residual and a rectifier behind it."""
    n, c, h, w, size, stride, pad, dilation = shape
    x, k = te.placeholder((n, c, h, w), dtype, name="x"), te.placeholder((c, 1, size, size), dtype, name="k")
    b = te.placeholder((c,), dtype, name="b")
    total = topi.nn.depthwise_conv2d_nchw(x, k, stride, pad, dilation)
    rest = te.placeholder(total.shape, dtype, name="rest")
    out = te.compute(
        total.shape, lambda i, f, y, z: tirx.max(total[i, f, y, z] + b[f] + rest[i, f, y, z], tirx.const(0, dtype))
    )

    def reference(x, k, b, rest):
        seen = np.einsum("ncyxpq,cpq->ncyx", windows(x, size, stride, pad, dilation), k[:, 0])
        return np.maximum(seen + b[:, None, None] + rest, 0)

    return [x, k, b, rest], out, reference


def tokens(shape):
    """Lines and columns are one dimension of the operand and of the result, the channels are innermost."""
    n, c, h, w, size, stride, pad, dilation = shape
    x, k = te.placeholder((n, h * w, c), name="x"), te.placeholder((size, size, c), name="k")
    high, wide = ((each + 2 * pad - dilation * (size - 1) - 1) // stride + 1 for each in (h, w))

    def padded(i, y, z, f):
        inside = tirx.all(y >= pad, y < h + pad, z >= pad, z < w + pad)
        return tirx.if_then_else(
            inside, tirx.max(x[i, (y - pad) * w + z - pad, f], tirx.const(0, "float32")), tirx.const(0, "float32")
        )

    picture = te.compute((n, h + 2 * pad, w + 2 * pad, c), padded)
    p, q = te.reduce_axis((0, size), "p"), te.reduce_axis((0, size), "q")

    def sum_at(i, t, f):
        line, column = t // wide * stride + p * dilation, t % wide * stride + q * dilation
        return te.sum(picture[i, line, column, f] * k[p, q, f], [p, q])

    total = te.compute((n, high * wide, c), sum_at)
    out = te.compute(
        total.shape, lambda i, t, f: total[i, t, f] * x[i, t, f] if high * wide == h * w else total[i, t, f]
    )

    def reference(x, k):
        picture = np.maximum(x, 0).reshape(n, h, w, c).transpose(0, 3, 1, 2)
        result = np.einsum("ncyxpq,pqc->nyxc", windows(picture, size, stride, pad, dilation), k).reshape(n, -1, c)
        return result * x if result.shape == x.shape else result

    return [x, k], out, reference


def planes_of_tokens(shape):
    """The operand has its channels innermost, the result outermost, and a residual that lies like the result."""
    n, c, h, w, size, stride, pad, dilation = shape
    x, k = te.placeholder((n, h * w, 2 * c), name="x"), te.placeholder((c, 1, size, size), name="k")
    zero = tirx.const(0, "float32")

    def padded(i, f, y, z):
        inside = tirx.all(y >= pad, y < h + pad, z >= pad, z < w + pad)
        return tirx.if_then_else(inside, x[i, (y - pad) * w + z - pad, f + c], zero)

    picture = te.compute((n, c, h + 2 * pad, w + 2 * pad), padded)
    total = topi.nn.depthwise_conv2d_nchw(picture, k, stride, 0, dilation)
    rest = te.placeholder(total.shape, name="rest")
    out = te.compute(total.shape, lambda i, f, y, z: tirx.max(total[i, f, y, z] + rest[i, f, y, z], zero))

    def reference(x, k, rest):
        plane = x[:, :, c:].transpose(0, 2, 1).reshape(n, c, h, w)
        seen = np.einsum("ncyxpq,cpq->ncyx", windows(plane, size, stride, pad, dilation), k[:, 0])
        return np.maximum(seen + rest, 0)

    return [x, k, rest], out, reference


def grouped(shape, group):
    """Channels innermost; each result sums up the `group` channels of its group. With a bias and a residual."""
    n, c, h, w, size, stride, pad, dilation = shape
    x, k = te.placeholder((n, h, w, c), name="x"), te.placeholder((group, size, size, c), name="k")
    b, zero = te.placeholder((c,), name="b"), tirx.const(0, "float32")

    def padded(i, y, z, f):
        inside = tirx.all(y >= pad, y < h + pad, z >= pad, z < w + pad)
        return tirx.if_then_else(inside, tirx.max(x[i, y - pad, z - pad, f], zero), zero)

    picture = te.compute((n, h + 2 * pad, w + 2 * pad, c), padded)
    m, p, q = (te.reduce_axis((0, extent)) for extent in (group, size, size))
    high, wide = ((each + 2 * pad - dilation * (size - 1) - 1) // stride + 1 for each in (h, w))

    def sum_at(i, y, z, f):
        seen = picture[i, y * stride + p * dilation, z * stride + q * dilation, f // group * group + m]
        return te.sum(seen * k[m, p, q, f], [m, p, q])

    total = te.compute((n, high, wide, c), sum_at)
    rest = te.placeholder(total.shape, name="rest")
    out = te.compute(total.shape, lambda i, y, z, f: total[i, y, z, f] + b[f] + rest[i, y, z, f])

    def reference(x, k, b, rest):
        seen = windows(np.maximum(x, 0).transpose(0, 3, 1, 2), size, stride, pad, dilation)
        seen = seen.reshape(n, c // group, group, high, wide, size, size)
        result = np.einsum("ngmyxpq,mpqgo->nyxgo", seen, k.reshape(group, size, size, c // group, group))
        return result.reshape(n, high, wide, c) + b + rest

    return [x, k, b, rest], out, reference


# Groups that are a part of a vector, and those that are one.
GROUPS = [(2, 6), (2, 32), (4, 8), (4, 12), (4, 68), (8, 24), (8, 64), (16, 16), (16, 112)]


@pytest.mark.parametrize(("group", "shape"), singles(GROUPS, SHAPES[1:]), ids=str)
def test_groups_of_channels(check, shape, group):
    n, _, *rest = shape
    lanes, channels = group
    check(*grouped((n, channels, *rest), lanes), "Depthwise", params=PARAMS["one task"])


@pytest.mark.parametrize(("params", "shape", "group"), pairs(PARAMS, SHAPES[1:4], [(2, 14), (4, 20), (4, 40)]), ids=str)
def test_groups_on_other_processors(check, shape, params, group):
    n, _, *rest = shape
    lanes, channels = group
    check(*grouped((n, channels, *rest), lanes), "Depthwise", params=PARAMS[params])


def test_a_channel_is_loaded_once_for_its_group(check):
    """What the eight columns of a tile look at, ten, is dealt out to the lanes once for each channel of a group."""
    text = check(*grouped((1, 32, 9, 8, 3, 1, 1, 1), 4), "Depthwise", params=PARAMS["one task"]).script()
    assert text.count("T.Shuffle") == 4 * (8 + 2)


@pytest.mark.parametrize("group", [3, 6, 8, 16, 24])  # the processor's vectors have four lanes
def test_other_groups_are_left_to_products(group):
    inputs, output, _ = grouped((1, 48, 9, 9, 3, 1, 1, 1), group)
    assert rule_of(inputs, output) != "Depthwise"


# More channels than the others: below eight the lanes are columns.
@pytest.mark.parametrize(("channels", "shape"), singles([3, 8, 11, 67], SHAPES[1:]), ids=str)
def test_tokens_that_become_planes(check, shape, channels):
    n, _, *rest = shape
    check(*planes_of_tokens((n, channels, *rest)), "Depthwise")


@pytest.mark.parametrize(("params", "shape"), singles(PARAMS, SHAPES[1:4]), ids=str)
def test_tokens_that_become_planes_on_other_processors(check, shape, params):
    n, _, *rest = shape
    check(*planes_of_tokens((n, 19, *rest)), "Depthwise", params=PARAMS[params])


def test_lines_of_tokens_are_read_along_their_channels(check):
    """A copy reads vectors: in its loops the channel is the innermost one."""
    text = check(*planes_of_tokens((1, 16, 9, 9, 3, 2, 1, 1)), "Depthwise").script()
    copies = [line for line in text.splitlines() if "band[" in line.split("=")[0] and "x[" in line]
    assert copies and all("j" in line.rpartition("x[")[2].split(", ")[2] for line in copies)


@pytest.mark.parametrize("build", [channels_first, tokens])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results(check, shape, build):
    check(*build(shape), "Depthwise")


@pytest.mark.parametrize(("params", "shape", "build"), pairs(PARAMS, SHAPES[1:4], [channels_first, tokens]))
def test_other_processors(check, shape, build, params):
    check(*build(shape), "Depthwise", params=PARAMS[params])


@pytest.mark.parametrize("channels", [1, 5, 67])
def test_channels_that_vectors_do_not_divide(check, channels):
    check(*tokens((1, channels, 6, 5, 3, 1, 1, 1)), "Depthwise")


def test_doubles(check):
    check(*channels_first((1, 3, 9, 18, 3, 2, 1, 1), "float64"), "Depthwise")


@pytest.mark.parametrize("stride", [1, 2])
def test_sums_of_halves_in_float32(check, stride):
    x, k = te.placeholder((2, 9, 18), "float16", name="x"), te.placeholder((2, 3, 3), "float16", name="k")
    picture = topi.nn.pad(x, [0, 1, 1], [0, 1, 1])
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")

    def sum_at(c, y, z):
        at = picture[c, y * stride + p, z * stride + q].astype("float32")
        return te.sum(at * k[c, p, q].astype("float32"), [p, q])

    def reference(x, k):
        seen = windows(x[None].astype("float32"), 3, stride, 1, 1)[0]
        return np.einsum("cyxpq,cpq->cyx", seen, k.astype("float32"))

    check([x, k], te.compute((2, 8 // stride + 1, 17 // stride + 1), sum_at), reference, "Depthwise")


@pytest.mark.each_value
@pytest.mark.parametrize("geometry", [(2, 2, 0), (3, 1, 1), (3, 2, 1)], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 4, 4), (2, 3, 7, 7), (1, 5, 13, 29), (1, 2, 64, 64)], ids=str)
def test_max_pool(check, shape, geometry):
    size, stride, pad = geometry
    x = te.placeholder(shape, name="x")
    output = topi.nn.pool2d(x, [size] * 2, [stride] * 2, [1, 1], [pad] * 4, "max")
    check([x], output, lambda x: windows(x, size, stride, pad, 1, -np.inf).max((4, 5)), "Depthwise")


@pytest.mark.parametrize("shape", [(1, 1, 4, 4), (1, 5, 13, 29)], ids=str)
def test_average_pool(check, shape):
    x = te.placeholder(shape, name="x")
    output = topi.nn.pool2d(x, [2, 2], [2, 2], [1, 1], [0] * 4, "avg")
    check([x], output, lambda x: windows(x, 2, 2, 0, 1).mean((4, 5)), "Depthwise")


@pytest.mark.parametrize("length", [5, 16, 77])
def test_one_dimension(check, length):
    x, k = te.placeholder((2, 3, length + 4), name="x"), te.placeholder((3, 5), name="k")
    q = te.reduce_axis((0, 5), "q")
    output = te.compute((2, 3, length), lambda i, c, z: te.sum(x[i, c, z + q] * k[c, q], [q]))

    def reference(x, k):
        return np.einsum("ncxq,cq->ncx", np.lib.stride_tricks.sliding_window_view(x, 5, axis=2), k)

    check([x, k], output, reference, "Depthwise")


def test_a_weight_of_each_place_reads_no_other_one(check):
    """Whole vectors over short lines would read weights behind the last one."""
    x, k = te.placeholder((3, 9, 8), name="x"), te.placeholder((3, 7, 6, 3, 3), name="k")
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")
    output = te.compute((3, 7, 6), lambda c, y, z: te.sum(x[c, y + p, z + q] * k[c, y, z, p, q], [p, q]))

    def reference(x, k):
        return np.einsum("cyxpq,cyxpq->cyx", np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2)), k)

    check([x, k], output, reference, "Depthwise", params=PARAMS["one task"])


@pytest.mark.parametrize(
    ("sizes", "kernel", "strides", "pads", "dilations"),
    [
        ((6, 10), (1, 4), (2, 3), (1, 1, 1, 0), (2, 2)),
        ((7, 5), (3, 1), (2, 1), (1, 2, 0, 1), (1, 1)),
        ((4, 4, 2), (3, 1, 2), (2, 2, 2), (1, 2, 1, 2, 0, 1), (2, 1, 1)),
        ((1, 5, 6), (1, 2, 3), (3, 1, 3), (1, 0, 0, 0, 0, 1), (1, 1, 1)),
    ],
)
def test_padding_where_the_window_does_not_move(check, sizes, kernel, strides, pads, dilations):
    """A window of one place that steps over lines sees padding too: no range of lines and columns says where."""
    rank, zero = len(sizes), tirx.const(0, "float32")
    before, after = pads[:rank], pads[rank:]
    x, k = te.placeholder((3, *sizes), name="x"), te.placeholder((3, *kernel), name="k")
    whole = [n + a + b for n, a, b in zip(sizes, before, after)]
    reach = [d * (n - 1) + 1 for d, n in zip(dilations, kernel)]

    def padded(c, *at):
        inside = tirx.all(*(tirx.all(y >= a, y < a + n) for y, a, n in zip(at, before, sizes)))
        return tirx.if_then_else(inside, x[(c, *(y - a for y, a in zip(at, before)))], zero)

    picture = te.compute((3, *whole), padded)
    taps = [te.reduce_axis((0, n), "p") for n in kernel if n > 1]

    def sum_at(c, *at):
        moved, places = iter(taps), []
        for y, stride, dilation, n in zip(at, strides, dilations, kernel):
            places.append((y * stride, next(moved) * dilation if n > 1 else 0))
        offsets = [tap for _, tap in places]
        weight = k[(c, *(tap // d if n > 1 else 0 for tap, d, n in zip(offsets, dilations, kernel)))]
        return te.sum(picture[(c, *(y + tap for y, tap in places))] * weight, taps)

    def reference(x, k):
        x = np.pad(x, [(0, 0), *zip(before, after)])
        seen = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(1, rank + 1)))
        seen = seen[(slice(None), *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))]
        result, window = "xyz"[:rank], "pqr"[:rank]
        return np.einsum(f"c{result}{window},c{window}->c{result}", seen, k)

    shape = [(n - far) // s + 1 for n, far, s in zip(whole, reach, strides)]
    check([x, k], te.compute((3, *shape), sum_at), reference, "Depthwise")


def test_the_padded_picture_is_never_whole(check):
    text = check(*channels_first((1, 6, 20, 20, 3, 1, 1, 1)), "Depthwise").script()
    assert "PaddedInput" not in text and "band" in text


def test_what_is_not_alone_is_left_to_others():
    x, k = te.placeholder((1, 4, 9, 9), name="x"), te.placeholder((8, 1, 3, 3), name="k")
    twice = topi.nn.group_conv2d_nchw(x, k, 1, 0, 1, 4)  # two results for each channel: Slide reads it once for both
    assert rule_of([x, k], twice) == "Slide"
    assert rule_of([x], topi.sum(x, axis=1)) == "Window"


def test_windows_that_run_backwards_are_left_to_others():
    x, k = te.placeholder((3, 9, 9), name="x"), te.placeholder((3, 3, 3), name="k")
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")
    output = te.compute((3, 7, 7), lambda c, y, z: te.sum(x[c, y + 2 - p, z + 2 - q] * k[c, p, q], [p, q]))
    assert rule_of([x, k], output) != "Depthwise"
