# SPDX-License-Identifier: Apache-2.0
"""Element-wise and data-movement schedules against numpy, and the folding of stages before them."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from smartmem_tvm.ir.compose import fold
from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.schedule import CpuParams
from smartmem_tvm.schedule.core.fold_policies import costly_once_and_plain_sums


@pytest.mark.parametrize("shape", [(1,), (7,), (1, 1, 1), (3, 5, 7), (16, 16), (101, 103), (1, 40000)])
def test_arithmetic(check, shape):
    x, y = te.placeholder(shape, name="x"), te.placeholder(shape, name="y")
    func = check(
        [x, y], topi.nn.relu(topi.add(topi.multiply(x, y), x)), lambda x, y: np.maximum(x * y + x, 0), "Elementwise"
    )
    assert ("T.parallel" in func.script()) == (np.prod(shape) >= 20000)


@pytest.mark.each_value
@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1)])
@pytest.mark.parametrize("shape", [(6, 6, 6), (5, 17, 33), (40, 1, 50), (64, 32, 16)])
def test_transpose(check, shape, axes):
    x = te.placeholder(shape, name="x")
    check([x], topi.transpose(x, axes), lambda x: x.transpose(axes), "Elementwise")


@pytest.mark.parametrize("shape", [(1, 37, 5), (2, 64, 48), (3, 7, 16), (1, 130, 19), (2, 9, 129)])
def test_what_is_computed_along_operands_and_stored_across_them(check, shape):
    """Several operands along the rows, one that is the same for all of them, an index that is looked up."""
    tokens, channels = shape[1], shape[2]
    x, y = te.placeholder(shape, name="x"), te.placeholder((tokens, channels), name="y")
    scale, half = te.placeholder((tokens,), name="scale"), tirx.const(0.5, "float32")

    def place(j):
        return tirx.max(tirx.floor((j.astype("float32") - half) * half).astype("int64"), tirx.const(0, "int64"))

    def value(b, i, j):
        return x[b, j, i] * scale[j] + y[j, i] - x[b, place(j), i]

    output = te.compute((shape[0], channels, tokens), value)
    places = np.maximum(np.floor((np.arange(tokens) - 0.5) * 0.5), 0).astype(int)

    def reference(x, y, scale):
        return (x * scale[:, None] + y - x[:, places]).swapaxes(1, 2)

    func = check([x, y, scale], output, reference, "Elementwise")
    assert ("turned" in func.script()) == (min(tokens, channels) >= 4)


def test_broadcast_on_either_side(check):
    x, row, column = te.placeholder((13, 21)), te.placeholder((21,)), te.placeholder((13, 1))
    check([x, row, column], topi.add(topi.add(x, row), column), lambda x, r, c: x + r + c, "Elementwise")


@pytest.mark.each_value
@pytest.mark.parametrize("rows", [3, 2000])
@pytest.mark.parametrize("length", [2, 3, 7, 16, 20, 24, 63, 64, 200])
def test_short_lines_are_vectors(check, rows, length):
    """LLVM would take elements of many lines for a vector: an operand along the lines, one across them."""
    x, y = te.placeholder((5, length), name="x"), te.placeholder((rows, 5), name="y")
    output = te.compute((5, rows, length), lambda b, i, j: x[b, j] * y[i, b])
    reference = lambda x, y: x[:, None] * y.T[:, :, None]  # noqa: E731
    func = check([x, y], output, reference, "Elementwise", params=CpuParams(lanes=16))
    assert ("T.vectorized" in func.script()) == (length < 64)


def test_pad_concat_slice_and_gather(check):
    x, y = te.placeholder((6, 10), name="x"), te.placeholder((3, 10), name="y")
    joined = topi.concatenate([x, y], 0)
    output = topi.nn.pad(topi.strided_slice(joined, [1, 2], [8, 10], [2, 1]), [1, 2], [0, 3])

    def reference(x, y):
        return np.pad(np.vstack([x, y])[1:8:2, 2:10], ((1, 0), (2, 3)))

    check([x, y], output, reference, "Elementwise")


def test_store_through_a_scattering_index(check):
    """A producer that writes through the inverse of a layout operator: consecutive points are far apart."""
    x = te.placeholder((12, 4), name="x")
    output = te.compute((4, 3, 4), lambda j, a, b: x[a * 4 + b, j] * tirx.const(2.0, "float32"))
    check([x], output, lambda x: 2 * x.T.reshape(4, 3, 4), "Elementwise")


def test_integers_and_casts(check):
    x = te.placeholder((5, 9), "int64", name="x")
    check(
        [x],
        topi.cast(x * 3, "float32"),
        lambda x: (x * 3).astype("float32"),
        "Elementwise",
        draw=lambda t: np.arange(45).reshape(5, 9),
    )


def folded(*stages_of):
    return fold(parse(te.create_prim_func(list(stages_of))), costly_once_and_plain_sums).stages


def test_cheap_stages_fold_into_all_readers():
    x = te.placeholder((8, 8), name="x")
    a = te.compute((8, 8), lambda i, j: x[i, j] + 1.0, name="a")
    b = te.compute((8, 8), lambda i, j: a[i, j] * a[j, i], name="b")
    assert [s.name for s in folded(x, b)] == ["b"]


def test_transcendentals_are_not_repeated():
    """Not inside a reduction, and not when two places read them."""
    x, k = te.placeholder((8, 8), name="x"), te.reduce_axis((0, 8), "k")
    e = te.compute((8, 8), lambda i, j: te.exp(x[i, j]), name="e")
    total = te.compute((8,), lambda i: te.sum(e[i, k], k), name="total")
    twice = te.compute((8, 8), lambda i, j: e[i, j] + e[j, i], name="twice")
    once = te.compute((8, 8), lambda i, j: e[i, j] + 1.0, name="once")
    assert [s.name for s in folded(x, total)] == ["e", "total"]
    assert [s.name for s in folded(x, twice)] == ["e", "twice"]
    assert [s.name for s in folded(x, once)] == ["once"]
