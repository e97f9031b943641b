# SPDX-License-Identifier: Apache-2.0
"""Row-wise schedules (softmax, normalisations, means) against numpy."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from smartmem_tvm.ir.walk import collect, contains, stores
from smartmem_tvm.schedule import CpuParams


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 16), (2, 3, 49), (197, 197), (4, 1000), (1, 513)])
def test_softmax(check, shape):
    x = te.placeholder(shape, name="x")
    check([x], topi.nn.softmax(x), softmax, "Rows")


@pytest.mark.parametrize("length", [7, 16, 50, 128])
def test_softmax_of_masked_scores_in_vectors(check, length):
    """A choice between numbers, before and after: exporters write zeros where a row has no number at all."""
    x, mask = te.placeholder((6, length), name="x"), te.placeholder((length,), "bool", name="mask")
    kept = te.compute(x.shape, lambda i, j: tirx.Select(mask[j], x[i, j], tirx.const(-1e9, "float32")))
    soft = topi.nn.softmax(kept)
    zero = tirx.const(0, "float32")
    output = te.compute(x.shape, lambda i, j: tirx.Select(soft[i, j] < tirx.const(0.1, "float32"), zero, soft[i, j]))

    def reference(x, mask):
        y = softmax(np.where(mask, x, np.float32(-1e9)))
        return np.where(y < 0.1, 0, y)

    rng = np.random.default_rng(0)
    draw = lambda t: rng.random(length) > 0.3 if str(t.dtype) == "bool" else rng.standard_normal((6, length))  # noqa: E731
    func = check([x, mask], output, reference, "Rows", draw=draw)
    vectors = [loop for loop in collect(func.body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
    chosen = [store for store in stores(func.body) if contains(store.value, tirx.Select)]
    assert chosen and all(any(store.same_as(each) for loop in vectors for each in stores(loop)) for store in chosen)


@pytest.mark.each_value
@pytest.mark.parametrize("length", [7, 8, 12, 16, 24, 31])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_short_rows_are_added_up_as_vectors(check, length, lanes):
    """Of less than two vectors, and less than one: the last vector ends where the row does, and counts once."""
    x, g = te.placeholder((9, length), name="x"), te.placeholder((length,), name="g")
    output = topi.nn.layer_norm(x, g, g, [1], 1e-5)

    def reference(x, g):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + g

    func = check([x, g], output, reference, "Rows", params=CpuParams(lanes=lanes))
    assert ("acc" in func.script()) == (length >= 8)


@pytest.mark.parametrize("shape", [(1, 4), (3, 5, 31), (50, 96), (2, 768), (7, 8, 100)])
def test_layer_norm(check, shape):
    x, g, b = te.placeholder(shape, name="x"), *(te.placeholder(shape[-1:], name=n) for n in "gb")

    def reference(x, g, b):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + b

    check([x, g, b], topi.nn.layer_norm(x, g, b, [len(shape) - 1], 1e-5), reference, "Rows")


@pytest.mark.parametrize("shape", [(2, 12, 5, 7), (1, 24, 8, 16), (1, 3, 1, 33)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_channel_norm_of_nchw(check, shape, channels_last):
    """The reduced axis is strided: neighbouring rows share a vector. The result may be transposed on the way out."""
    n, c, h, w = shape
    x, k = te.placeholder(shape, name="x"), te.reduce_axis((0, c), "k")
    mean = te.compute((n, h, w), lambda b, y, z: te.sum(x[b, k, y, z], k), name="mean")
    q = te.reduce_axis((0, c), "q")

    def centred(b, i, y, z):
        return x[b, i, y, z] - mean[b, y, z] / c

    var = te.compute((n, h, w), lambda b, y, z: te.sum(centred(b, q, y, z) * centred(b, q, y, z), q), name="var")

    def value(b, i, y, z):
        return centred(b, i, y, z) / te.sqrt(var[b, y, z] / c + tirx.const(1e-5, "float32"))

    if channels_last:
        output = te.compute((n, h, w, c), lambda b, y, z, i: value(b, i, y, z))
    else:
        output = te.compute(shape, value)

    def reference(x):
        moved = x - x.mean(1, keepdims=True)
        result = moved / np.sqrt((moved**2).mean(1, keepdims=True) + 1e-5)
        return result.transpose(0, 2, 3, 1) if channels_last else result

    check([x], output, reference, "Rows")


@pytest.mark.parametrize("shape", [(2, 12, 5, 7), (1, 64, 8, 16), (1, 3, 1, 33), (1, 5, 1, 1)])
def test_a_second_norm_of_channels_reads_the_weights_of_the_first(check, shape):
    """Weights lie along the channels that are summed over, and say nothing of the picture, whose lanes are columns."""
    n, c, h, w = shape
    x, g = te.placeholder(shape, name="x"), te.placeholder((c,), name="g")
    k, q = te.reduce_axis((0, c), "k"), te.reduce_axis((0, c), "q")
    first = te.compute((n, h, w), lambda b, y, z: te.sum(x[b, k, y, z] * x[b, k, y, z], k), name="first")

    def scaled(b, i, y, z):
        return x[b, i, y, z] / te.sqrt(first[b, y, z] / c + tirx.const(1e-5, "float32")) * g[i]

    second = te.compute((n, h, w), lambda b, y, z: te.sum(scaled(b, q, y, z) * scaled(b, q, y, z), q), name="second")
    output = te.compute(
        shape, lambda b, i, y, z: scaled(b, i, y, z) / te.sqrt(second[b, y, z] + tirx.const(1, "float32"))
    )

    def reference(x, g):
        y = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * g[:, None, None]
        return y / np.sqrt((y**2).sum(1, keepdims=True) + 1)

    scheduled = check([x, g], output, reference, "Rows")
    if w >= 16:
        assert "lane" in scheduled.script(), "columns next to each other are worked on together"


def test_group_norm_over_two_axes(check):
    x = te.placeholder((3, 4, 10, 13), name="x")
    k, q = te.reduce_axis((0, 10), "k"), te.reduce_axis((0, 13), "q")
    total = te.compute((3, 4), lambda b, g: te.sum(x[b, g, k, q], [k, q]), name="total")
    output = te.compute(x.shape, lambda b, g, i, j: x[b, g, i, j] - total[b, g] / 130)
    check([x], output, lambda x: x - x.mean((2, 3), keepdims=True), "Rows")


@pytest.mark.parametrize("shape", [(64, 49), (5, 6), (1, 1000), (3, 7, 7), (2, 184), (3, 31), (2, 263), (5, 16)])
def test_mean_of_a_contiguous_row(check, shape):
    axis = tuple(range(1, len(shape)))
    x = te.placeholder(shape, name="x")
    check([x], topi.sum(x, axis=axis) / float(np.prod(shape[1:])), lambda x: x.mean(axis), "Rows")


def test_matrix_times_vector_along_the_row(check):
    """One row of weights per result: a dot product each."""
    x, w, b = (te.placeholder(s, name=n) for s, n in (((1, 70), "x"), ((30, 70), "w"), ((30,), "b")))
    k = te.reduce_axis((0, 70), "k")
    y = te.compute((1, 30), lambda i, j: te.sum(x[i, k] * w[j, k], k), name="y")
    output = te.compute((1, 30), lambda i, j: y[i, j] + b[j])
    check([x, w, b], output, lambda x, w, b: x @ w.T + b, "Rows")


def test_a_row_with_a_condition_in_it(check):
    """Concatenated and gathered rows: no vector reduction over a select, but the right result."""
    table, ids, head = te.placeholder((9, 20), name="t"), te.placeholder((6,), "int32", name="i"), te.placeholder((20,))
    k = te.reduce_axis((0, 20), "k")

    def row(i, c):
        return tirx.if_then_else(i < 1, head[c], table[ids[tirx.max(i - 1, 0)], c])

    total = te.compute((7,), lambda i: te.sum(row(i, k), k), name="total")
    output = te.compute((7, 20), lambda i, c: row(i, c) - total[i])

    def draw(tensor):
        rng = np.random.default_rng(1)
        shape = [int(d) for d in tensor.shape]
        return rng.integers(0, 9, shape) if "int" in str(tensor.dtype) else rng.standard_normal(shape)

    def reference(table, ids, head):
        rows = np.vstack([head, table[ids]])
        return rows - rows.sum(-1, keepdims=True)

    check([table, ids, head], output, reference, "Rows", draw=draw)


def test_merged_patches_are_collected_once(check):
    """Four neighbours side by side in one row: ``//`` and ``%`` along the row, read by three stages, gathered once."""
    x = te.placeholder((8, 6, 32), name="x")

    def row(y, z, c):
        return x[y * 2 + c % 64 // 32, z * 2 + c // 64, c % 32]

    k, q = te.reduce_axis((0, 128), "k"), te.reduce_axis((0, 128), "q")
    mean = te.compute((4, 3), lambda y, z: te.sum(row(y, z, k), k), name="mean")
    var = te.compute((4, 3), lambda y, z: te.sum(row(y, z, q) * row(y, z, q), q), name="var")
    output = te.compute((4, 3, 128), lambda y, z, c: (row(y, z, c) - mean[y, z] / 128) / te.sqrt(var[y, z]))

    def reference(x):
        merged = np.concatenate([x[0::2, 0::2], x[1::2, 0::2], x[0::2, 1::2], x[1::2, 1::2]], -1)
        return (merged - merged.mean(-1, keepdims=True)) / np.sqrt((merged**2).sum(-1, keepdims=True))

    func = check([x], output, reference, "Rows")
    assert "row_row = T.sblock_alloc_buffer((128,))" in func.script()


def test_operands_read_by_one_stage_are_not_collected(check):
    x, y = te.placeholder((6, 40), name="x"), te.placeholder((6, 40), name="y")
    k = te.reduce_axis((0, 40), "k")
    total = te.compute((6,), lambda i: te.sum(tirx.if_then_else(k < 7, x[i, k], y[i, k]), k), name="total")
    output = te.compute((6, 40), lambda i, c: x[i, c] - total[i])

    def reference(x, y):
        return x - np.concatenate([x[:, :7], y[:, 7:]], -1).sum(-1, keepdims=True)

    func = check([x, y], output, reference, "Rows")
    assert "row_row" not in func.script()


def test_intermediate_rows_stay_small(check):
    x = te.placeholder((300, 64), name="x")
    func = check([x], topi.nn.softmax(x), softmax, "Rows")
    allocated = [line for line in func.script().splitlines() if "alloc_buffer" in line]
    assert allocated and not any("300" in line for line in allocated)
    assert "T.parallel" in func.script() and "T.vectorized" in func.script()


@pytest.mark.parametrize("side", [7, 32])
def test_what_is_the_same_along_a_row_does_not_turn_it(check, side):
    """A bias lies along the results, the picture along what is added up: the picture decides."""
    x = te.placeholder((1, 24, side, side), name="x")
    bias, k = te.placeholder((1, 24, 1, 1), name="bias"), [te.reduce_axis((0, side), n) for n in "hw"]
    zero = tirx.const(0, "float32")
    total = te.compute(
        (1, 24, 1, 1), lambda n, c, y, z: te.sum(tirx.max(x[n, c, k[0], k[1]] + bias[n, c, 0, 0], zero), k), "total"
    )
    mean = te.compute(total.shape, lambda *i: total[i] / tirx.const(side**2, "float32") + bias[i])

    def reference(x, bias):
        return np.maximum(x + bias, 0).mean((2, 3), keepdims=True) + bias

    check([x, bias], mean, reference, "Rows")


@pytest.mark.parametrize("channels", [8, 33, 48])
def test_channels_that_are_scaled_are_lanes(check, channels):
    """Rows are channels, of which the results lie side by side: a gate beside the tensor that it scales."""
    x, g = te.placeholder((6, 7, channels), name="x"), te.placeholder((12,), name="g")
    w, k = te.placeholder((channels, 12), name="w"), te.reduce_axis((0, 12), "k")
    total = te.compute((channels,), lambda c: te.sum(g[k] * w[c, k], k), name="total")
    output = te.compute((6, 7, channels), lambda y, z, c: x[y, z, c] * te.sigmoid(total[c]))
    check([x, g, w], output, lambda x, g, w: x / (1 + np.exp(-(w @ g))), "Rows")


@pytest.mark.parametrize("seed", range(24))
def test_statistics_of_lines_and_of_all_of_a_row(check, seed):
    """A row of several lines, each element of which is stored, read, and stored again.

    TVM may give the second store the memory that the first one filled, so no element may be computed twice.
    """
    rng = np.random.default_rng(seed)
    rows, lines, length = (int(rng.integers(1, high)) for high in (4, 6, 20))
    lanes, turns = int(rng.choice([2, 4, 8, 16])), int(rng.integers(1, 4))
    x = te.placeholder((rows, lines, length), name="x")

    def over(value, axes, kind):
        extents = [te.reduce_axis((0, x.shape[a]), f"k{a}") for a in axes]
        kept = [a for a in range(3) if a not in axes]

        def at(*place):
            point = [place[kept.index(a)] if a in kept else extents[axes.index(a)] for a in range(3)]
            return kind(value[tuple(point)], axis=extents)

        return te.compute([x.shape[a] for a in kept], at, name="statistic")

    value, want = x, lambda x: x
    for _ in range(turns):
        axes, (kind, of) = ([[2], [1, 2]][rng.integers(2)]), [(te.max, np.max), (te.sum, np.sum)][rng.integers(2)]
        total, before, source = over(value, axes, kind), want, value
        given = (lambda i, j, t=total: t[i, j]) if len(axes) == 1 else (lambda i, j, t=total: t[i])

        def element(i, j, k):
            return te.exp(tirx.min(source[i, j, k] - given(i, j), 1))  # noqa: B023  # it is called at once

        value = te.compute(x.shape, element, name="value")

        def want(x, before=before, axes=tuple(axes), of=of):
            y = before(x)
            return np.exp(np.minimum(y - of(y, axis=axes, keepdims=True), 1))

    output = over(value, [1, 2], te.sum)
    check([x], output, lambda x: want(x).sum((1, 2)), "Rows", params=CpuParams(lanes=lanes))
