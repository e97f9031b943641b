# SPDX-License-Identifier: Apache-2.0
"""Row-wise kernels on a grid of threads (normalisations, softmax, sums, pooling) against numpy."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import te, tirx, topi

from covering import singles
from gpu_rule_checks import TARGET, check, kernels, scheduled, threads
from smartmem_tvm.schedule.gpu.launch import GpuParams
from smartmem_tvm.schedule.gpu.rows.rows import GpuRows
from smartmem_tvm.target import Limits, host_target

VECTORS = GpuParams.of(replace(Limits.of(TARGET), vector=4))
EITHER = pytest.mark.parametrize("params", [None, VECTORS], ids=["scalars", "vectors"])


def tensors(*shapes):
    return [te.placeholder(shape, name=name) for shape, name in zip(shapes, "xyzw", strict=False)]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normal(x, axes=(-1,)):
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)


@pytest.mark.parametrize(
    ("shape", "params"),
    singles(
        [(1, 1), (3, 7), (5, 16), (2, 3, 49), (197, 197), (4, 1000), (3, 10000), (10007, 3), (1, 30000)],
        [None, VECTORS],
    ),
)
def test_softmax(shape, params):
    (x,) = tensors(shape)
    assert kernels(check(GpuRows, [x], topi.nn.softmax(x), softmax, params)) == 1


@pytest.mark.parametrize(
    ("shape", "params"),
    singles(
        [(1, 1), (1, 4), (3, 5, 31), (50, 96), (2, 768), (64, 64), (13, 1), (1, 10000), (2, 50000)], [VECTORS, None]
    ),
)
def test_layer_norm(shape, params):
    x, g, b = tensors(shape, shape[-1:], shape[-1:])
    output = topi.nn.layer_norm(x, g, b, [len(shape) - 1], 1e-5)
    check(GpuRows, [x, g, b], output, lambda x, g, b: normal(x) * g + b, params)


def test_a_row_is_read_once():
    """Three steps read it, one load fetches it."""
    x, g, b = tensors((200, 96), (96,), (96,))
    source = check(GpuRows, [x, g, b], topi.nn.layer_norm(x, g, b, [1], 1e-5), lambda x, g, b: normal(x) * g + b)
    body = source.rpartition("__kernel")[2]
    assert body.count(" x_ptr[") == 1


def test_rows_in_vectors():
    x, g, b = tensors((50, 96), (96,), (96,))
    output = topi.nn.layer_norm(x, g, b, [1], 1e-5)
    assert "const __global float4*" in check(GpuRows, [x, g, b], output, lambda x, g, b: normal(x) * g + b, VECTORS)


@pytest.mark.parametrize(("shape", "groups"), [((2, 8, 5, 7), 4), ((1, 32, 16, 16), 8), ((3, 6, 64, 64), 2)])
def test_group_norm(shape, groups):
    """Its two sums arrive as one reduction to a tuple, and its rows hide in the channels."""
    x, g, b = tensors(shape, shape[1:2], shape[1:2])

    def reference(x, g, b):
        rows = normal(x.reshape(shape[0], groups, -1))
        return rows.reshape(shape) * g[:, None, None] + b[:, None, None]

    output = topi.nn.group_norm(x, g, b, groups, 1, [2, 3], 1e-5)
    assert kernels(check(GpuRows, [x, g, b], output, reference)) == 1


@pytest.mark.parametrize("shape", [(7, 33), (2, 3, 768)])
def test_rms_norm(shape):
    x, g = tensors(shape, shape[-1:])

    def reference(x, g):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g

    check(GpuRows, [x, g], topi.nn.rms_norm(x, g, [len(shape) - 1], 1e-5), reference)


@pytest.mark.parametrize(
    ("shape", "last"),
    singles([(2, 12, 5, 7), (1, 96, 56, 56), (1, 3, 1, 33), (1, 768, 7, 7), (1, 5, 1, 1)], [False, True]),
    ids=str,
)
def test_channel_norm_of_nchw(shape, last):
    """Neighbouring threads read neighbouring pixels; results that lie along the channels are turned on the way out."""
    n, c, h, w = shape
    (x,), k, q = tensors(shape), te.reduce_axis((0, c), "k"), te.reduce_axis((0, c), "q")
    mean = te.compute((n, h, w), lambda b, y, z: te.sum(x[b, k, y, z], k), name="mean")

    def centred(b, i, y, z):
        return x[b, i, y, z] - mean[b, y, z] / c

    var = te.compute((n, h, w), lambda b, y, z: te.sum(centred(b, q, y, z) * centred(b, q, y, z), q), name="var")

    def value(b, i, y, z):
        return centred(b, i, y, z) / te.sqrt(var[b, y, z] / c + tirx.const(1e-5, "float32"))

    output = te.compute((n, h, w, c), lambda b, y, z, i: value(b, i, y, z)) if last else te.compute(shape, value)

    def reference(x):
        result = normal(x, (1,))
        return result.transpose(0, 2, 3, 1) if last else result

    check(GpuRows, [x], output, reference)
    if h * w > 3000:  # with few rows each is a group's own, and its threads lie along the channels anyway
        assert ("_tile" in scheduled(GpuRows(), [x], output).script()) == last


def test_a_transposed_result_of_contiguous_rows():
    (x,), k = tensors((40, 60)), te.reduce_axis((0, 60), "k")
    total = te.compute((40,), lambda i: te.sum(x[i, k], k), name="total")
    output = te.compute((60, 40), lambda j, i: x[i, j] / total[i])
    check(GpuRows, [x], output, lambda x: (x / x.sum(-1, keepdims=True)).T)
    assert "_tile" in scheduled(GpuRows(), [x], output).script()


@pytest.mark.parametrize(
    ("axes", "reduce"),
    singles([(0,), (1,), (2,), (3,), (0, 2), (1, 3), (1, 2), (2, 3), (0, 1, 2, 3)], ["sum", "max", "min"]),
    ids=str,
)
def test_reductions_along_any_axes(axes, reduce):
    (x,) = tensors((3, 6, 20, 13))
    check(GpuRows, [x], getattr(topi, reduce)(x, axes), lambda x: getattr(x, reduce)(axes))


def test_one_number_is_the_work_of_many_threads():
    (x,) = tensors((100, 101))
    source = check(GpuRows, [x], topi.sum(x * x), lambda x: (x.astype("f8") ** 2).sum())
    assert kernels(source) == 1 and threads(source) >= 256


@pytest.mark.parametrize("shape", [(1000, 1001), (4, 250, 1001), (1, 2**16 + 2)])
def test_few_long_sums_are_the_work_of_many_groups(shape):
    """One kernel for their parts, one for their totals and what follows."""
    (x,) = tensors(shape)
    axes = tuple(range(len(shape) - 2, len(shape)))
    output = topi.sqrt(topi.sum(x * x, axes))
    source = check(GpuRows, [x], output, lambda x: np.sqrt((x.astype("f8") ** 2).sum(axes)))
    assert kernels(source) == 2 and threads(source) >= 2048


@pytest.mark.each_value
@EITHER
@pytest.mark.parametrize("shape", [(3, 2**17), (1, 3 * 5 * 7 * 1249), (2, 98 * 1338)])
def test_few_long_rows_are_normalised_in_pieces_by_many_groups(shape, params):
    """Partial sums, partial sums of squares, all elements: each group adds up what the launch before has left."""
    x, g = tensors(shape, shape[1:])
    output = topi.nn.layer_norm(x, g, g, [1], 1e-5)
    source = check(GpuRows, [x, g], output, lambda x, g: normal(x.astype("f8")) * g + g, params)
    assert kernels(source) == 3


@pytest.mark.parametrize("rows", [1, 32])
def test_pieces_of_images_are_read_in_vectors(rows):
    """No piece ends in the middle of an image's row; a factor for each channel is one number for a vector of them."""
    x, g = tensors((rows, 64, 56, 56), (64, 1, 1))
    size = 64 * 56 * 56
    flat = topi.reshape(x, (rows, size))
    mean = topi.sum(flat, 1, True) / float(size)
    variance = topi.sum((flat - mean) * (flat - mean), 1, True) / float(size)
    each = [topi.reshape(one, (rows, 1, 1, 1)) for one in (mean, variance)]
    output = (x - each[0]) * topi.rsqrt(each[1] + 1e-5) * g
    source = check(GpuRows, [x, g], output, lambda x, g: normal(x.astype("f8"), (1, 2, 3)) * g, VECTORS)
    assert kernels(source) == 3 and "float4*)(x_ptr" in source and "x_ptr[" not in source


@EITHER
def test_softmax_of_a_long_row(params):
    (x,) = tensors((1, 2**17 + 2**4))
    assert kernels(check(GpuRows, [x], topi.nn.softmax(x), softmax, params)) == 3


def test_what_is_written_on_the_way_is_read_from_there():
    """And computed once: the launches after the first read neither summand."""
    x, y = tensors((2, 2**17), (2, 2**17))
    total = te.compute(x.shape, lambda i, j: x[i, j] + y[i, j], "total")
    output = topi.nn.softmax(total)
    source = check(GpuRows, [x, y], [total, output], lambda x, y: (x + y, softmax((x + y).astype("f8"))))
    first, *others = source.split("// Function: ")[1:]
    assert len(others) == 2 and "y_ptr[" in first and not any("y_ptr[" in other for other in others)


def test_long_rows_in_no_pieces():
    """A prime number of columns; a mean that leaves the kernel: stage by stage."""
    (x,) = tensors((1, 40009))
    assert kernels(check(GpuRows, [x], topi.nn.softmax(x), softmax)) == 4
    (x,) = tensors((1, 2**16))
    mean = topi.divide(topi.sum(x, 1, keepdims=True), 2.0**16)
    spread = topi.sum((x - mean) * (x - mean), 1, keepdims=True)

    def reference(x):
        mean = x.astype("f8").mean(1, keepdims=True)
        return mean, ((x - mean) ** 2).sum(1, keepdims=True)

    assert kernels(check(GpuRows, [x], [mean, spread], reference)) == 5


def test_long_sums_that_divide_into_no_parts_stay_whole():
    (x,) = tensors((1, 65537))
    assert kernels(check(GpuRows, [x], topi.max(x, 1), lambda x: x.max(1))) == 1


@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 16, 30, 30), (1, 3, 1, 1)])
def test_pooling_with_its_padding_is_one_kernel_without_barriers(shape):
    (x,) = tensors(shape)
    output = topi.nn.relu(topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max"))

    def reference(x):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        return np.maximum(windows[:, :, ::2, ::2].max((-1, -2)), 0)

    assert kernels(check(GpuRows, [x], output, reference)) == 1


@pytest.mark.parametrize("shape", [(1, 2048, 7, 7), (2, 5, 1, 1), (1, 8, 40, 40)])
def test_global_pooling(shape):
    (x,) = tensors(shape)
    check(GpuRows, [x], topi.nn.adaptive_pool(x, (1, 1), "avg"), lambda x: x.mean((2, 3)))


@pytest.mark.parametrize("by_column", [False, True])
def test_a_matrix_times_a_vector(by_column):
    x, w, b = tensors((1, 70), (70, 30) if by_column else (30, 70), (30,))
    k = te.reduce_axis((0, 70), "k")
    y = te.compute((1, 30), lambda i, j: te.sum(x[i, k] * (w[k, j] if by_column else w[j, k]), k), name="y")
    output = te.compute((1, 30), lambda i, j: te.max(y[i, j] + b[j], tirx.const(0, "float32")))
    check(GpuRows, [x, w, b], output, lambda x, w, b: np.maximum(x @ (w if by_column else w.T) + b, 0))


def test_a_gathered_row_with_a_condition():
    """Embeddings summed and normalised: one kernel; no element is read where its condition does not hold."""
    table, head = te.placeholder((9, 20), name="t"), te.placeholder((20,), name="h")
    ids, k = te.placeholder((6,), "int64", name="i"), te.reduce_axis((0, 20), "k")

    def row(i, c):
        return tirx.if_then_else(i < 1, head[c], table[ids[tirx.max(i - 1, 0)], c])

    total = te.compute((7,), lambda i: te.sum(row(i, k), k), name="total")
    output = te.compute((7, 20), lambda i, c: row(i, c) - total[i])

    def reference(table, ids, head):
        rows = np.vstack([head, table[ids]])
        return rows - rows.sum(-1, keepdims=True)

    assert kernels(check(GpuRows, [table, ids, head], output, reference)) == 1


def test_a_costly_vector_between_two_reductions_stays_in_registers():
    (x,), k, q = tensors((50, 300)), te.reduce_axis((0, 300), "k"), te.reduce_axis((0, 300), "q")
    most = te.compute((50,), lambda i: te.max(x[i, k], k), name="most")
    power = te.compute((50, 300), lambda i, j: te.exp(x[i, j] - most[i]), name="power")
    total = te.compute((50,), lambda i: te.sum(power[i, q], q), name="total")
    output = te.compute((50, 300), lambda i, j: power[i, j] / total[i] + x[i, j])
    source = check(GpuRows, [x], output, lambda x: softmax(x) + x)
    assert kernels(source) == 1 and "power_ptr" not in source


def test_a_row_that_no_registers_hold_is_read_again():
    (x,) = tensors((2, 4000))
    few = replace(GpuParams.of(Limits.of(TARGET)), row_registers=2)
    assert "row_row" not in check(GpuRows, [x], topi.nn.softmax(x), softmax, few)


def test_groups_fit_the_target():
    (x,) = tensors((3, 100_000))
    small = GpuParams.of(replace(Limits.of(TARGET), work_group=64))
    source = check(GpuRows, [x], topi.sum(x, 1), lambda x: x.sum(1), small)
    assert "// Work group 64 1 1" in source


def test_matmuls_and_other_targets_are_left_to_others():
    x, w = tensors((40, 24), (24, 50))
    assert scheduled(GpuRows(), [x, w], topi.matmul(x, w)) is None
    assert scheduled(GpuRows(), [x], topi.nn.relu(x)) is None
    assert GpuRows().apply(te.create_prim_func([x, topi.sum(x, 1)]), host_target()) is None
