# SPDX-License-Identifier: Apache-2.0
"""Quotients by a row's own sum: products with its inverse where that is as good, and quotients where it is not."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.ir.walk import contains
from smartmem_tvm.schedule.cpu.softmax_division import division_by_inverse


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def quotients(inputs, output) -> tuple[bool, bool]:
    """Whether the last stage divides elements, and whether it divides one by a sum."""
    kernel = division_by_inverse(parse(te.create_prim_func([*inputs, output])))
    value = kernel.last.body.value
    ones = contains(value, tirx.Div, lambda each: isinstance(each.a, tirx.FloatImm))
    return contains(value, tirx.Div, lambda each: not isinstance(each.a, tirx.FloatImm)), ones


# Shorter than a vector, rows that end within one, and rows of several partial sums.
@pytest.mark.parametrize("length", [3, 4, 7, 8, 9, 15, 17, 33, 49, 64, 77, 196])
def test_softmax(check, length):
    x = te.placeholder((3, 5, length), name="x")
    check([x], topi.nn.softmax(x), softmax, "Rows")
    assert quotients([x], topi.nn.softmax(x)) == (False, True)


@pytest.mark.each_value
@pytest.mark.parametrize("length", [9, 17, 49])
@pytest.mark.parametrize("combine", ["sum", "max", "min"])
def test_the_end_of_a_row_counts_once(check, combine, length):
    x = te.placeholder((6, length), name="x")
    check([x], getattr(topi, combine)(x, axis=1), lambda x: getattr(x, combine)(1), "Rows")


def test_a_softmax_scaled_and_more(check):
    x, w = te.placeholder((7, 50), name="x"), te.placeholder((50,), name="w")
    e = te.compute(x.shape, lambda i, j: te.exp(x[i, j]))
    k = te.reduce_axis((0, 50), "k")
    s = te.compute((7,), lambda i: te.sum(e[i, k], [k]))
    y = te.compute(x.shape, lambda i, j: w[j] + e[i, j] * 2 / s[i])

    def reference(x, w):
        e = np.exp(x)
        return w + 2 * e / e.sum(1, keepdims=True)

    check([x, w], y, reference, "Rows")
    assert quotients([x, w], y) == (False, True)


def test_other_quotients_stay():
    x = te.placeholder((7, 50), name="x")
    k, m = te.reduce_axis((0, 50), "k"), te.reduce_axis((0, 50), "m")
    largest = te.compute((7,), lambda i: te.max(x[i, k], [k]))
    assert quotients([x], te.compute(x.shape, lambda i, j: x[i, j] / largest[i])) == (True, False)
    norm = te.compute((7,), lambda i: te.sum(x[i, m] * x[i, m], [m]))
    assert quotients([x], te.compute(x.shape, lambda i, j: x[i, j] / norm[i])) == (True, False)
    total = te.compute((7,), lambda i: te.sum(x[i, k], [k]))
    assert quotients([x], te.compute(x.shape, lambda i, j: x[i, j] / total[i])) == (True, False)
    bits = te.compute(x.shape, lambda i, j: tirx.Select(tirx.reinterpret("int32", x[i, j]) > 0, x[i, j], x[i, 0]))
    q = te.reduce_axis((0, 50), "q")
    chosen = te.compute((7,), lambda i: te.sum(bits[i, q], [q]))
    assert quotients([x], te.compute(x.shape, lambda i, j: bits[i, j] / chosen[i])) == (True, False)
    for dtype in ("float16", "float64"):
        other = te.placeholder((7, 50), dtype, name="x")
        assert quotients([other], topi.nn.softmax(other)) == (True, False)
