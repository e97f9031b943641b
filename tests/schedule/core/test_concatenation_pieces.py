# SPDX-License-Identifier: Apache-2.0
"""Kernels over joined tensors are cut where the tensors change, and compute the same."""

import numpy as np
import pytest
from tvm import te, tirx

from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.schedule.core.concatenation_pieces import pieces
from smartmem_tvm.schedule.core.expressions import has_select


def _kernel(inputs, output):
    return parse(te.create_prim_func([*inputs, output]))


def _choice(first: int, second: int, rows: int, compare="le"):
    """``exp`` of two tensors next to each other."""
    x, y = te.placeholder((rows, first), name="x"), te.placeholder((rows, second), name="y")

    def value(i, j):
        ways = (y[i, j - first], x[i, j])
        if compare == "le":
            return tirx.if_then_else(tirx.const(first, "int32") <= j, *ways)
        return tirx.if_then_else(j < first, *reversed(ways))

    return [x, y], te.compute((rows, first + second), lambda i, j: te.exp(value(i, j)), name="z")


@pytest.mark.parametrize("compare", ["le", "lt"])
def test_pieces_have_nothing_to_choose(compare):
    found = pieces(_kernel(*_choice(300, 41, 7, compare)))
    assert [[*piece.last.extents.values()] for piece in found] == [[7, 300], [7, 41]]
    assert not any(has_select(piece.last.body) for piece in found)


@pytest.mark.parametrize("first, second, rows", [(300, 41, 7), (97, 101, 13), (1600, 400, 3), (8, 640, 41)])
@pytest.mark.parametrize("compare", ["le", "lt"])
def test_values(check, first, second, rows, compare):
    check(*_choice(first, second, rows, compare), lambda x, y: np.exp(np.hstack([x, y])), "Elementwise")


def test_both_dimensions(check):
    """Two tensors side by side over a third one."""
    x, y, z = (te.placeholder(shape, name=n) for n, shape in {"x": (17, 50), "y": (17, 31), "z": (29, 81)}.items())

    def value(i, j):
        upper = tirx.if_then_else(j >= 50, y[i, j - 50], x[i, j])
        return te.exp(tirx.if_then_else(i >= 17, z[i - 17, j], upper))

    output = te.compute((46, 81), value)
    assert len(pieces(_kernel([x, y, z], output))) == 3
    check([x, y, z], output, lambda x, y, z: np.exp(np.vstack([np.hstack([x, y]), z])), "Elementwise")


def test_a_piece_is_cut_only_where_something_is_chosen_in_it(check):
    """Boxes over classes of three pictures: the lines of boxes are too short to be cut where pictures end."""
    boxes, *pictures = (te.placeholder(shape) for shape in ((2, 700), (80, 400), (80, 200), (80, 100)))

    def value(i, j):
        large, medium, small = pictures
        one = tirx.if_then_else(j >= 600, small[i - 2, j - 600], medium[i - 2, j - 400])
        one = tirx.if_then_else(j >= 400, one, large[i - 2, j])
        return tirx.if_then_else(i >= 2, te.exp(one), boxes[i, j])

    output = te.compute((82, 700), value)
    found = pieces(_kernel([boxes, *pictures], output))
    assert [[*piece.last.extents.values()] for piece in found] == [[2, 700], [80, 400], [80, 200], [80, 100]]
    assert not any(has_select(piece.last.body) for piece in found)
    check([boxes, *pictures], output, lambda b, *p: np.vstack([b, np.exp(np.hstack(p))]), "Elementwise")


@pytest.mark.parametrize("first, second", [(640, 160), (601, 97), (64, 5)])
def test_rows_next_to_each_other(check, first, second):
    """Softmax over the leading dimension of joined tensors: the vectors are of rows, which change their source."""
    x, y = te.placeholder((16, first), name="x"), te.placeholder((16, second), name="y")

    def joined(i, j):
        return tirx.if_then_else(first <= j, y[i, j - first], x[i, j])

    columns, k, r = first + second, te.reduce_axis((0, 16)), te.reduce_axis((0, 16))
    most = te.compute((columns,), lambda j: te.max(joined(k, j), axis=k), name="most")
    part = te.compute((16, columns), lambda i, j: te.exp(joined(i, j) - most[j]), name="part")
    total = te.compute((columns,), lambda j: te.sum(part[r, j], axis=r), name="total")
    output = te.compute((16, columns), lambda i, j: part[i, j] / total[j], name="out")

    def reference(x, y):
        values = np.hstack([x, y])
        values = np.exp(values - values.max(axis=0))
        return values / values.sum(axis=0)

    check([x, y], output, reference, "Rows")


def test_what_is_not_cut():
    """Padding, which a mask can do; many or small pieces; a condition on something else than an iterator."""
    x = te.placeholder((40, 64), name="x")
    padded = te.compute((40, 80), lambda i, j: te.exp(tirx.if_then_else(j < 64, x[i, j], tirx.const(0.0, "float32"))))
    assert len(pieces(_kernel([x], padded))) == 1
    assert len(pieces(_kernel(*_choice(16, 3, 5)))) == 1
    odd = te.compute((40, 64), lambda i, j: te.exp(tirx.if_then_else(j % 2 < 1, x[i, j], x[39 - i, j])))
    assert len(pieces(_kernel([x], odd))) == 1


def test_a_sum_is_not_cut_along_what_it_sums():
    x, y, k = te.placeholder((300, 8)), te.placeholder((300, 8)), te.reduce_axis((0, 16))
    output = te.compute((300,), lambda i: te.sum(tirx.if_then_else(k >= 8, y[i, k - 8], x[i, k]), axis=k))
    assert len(pieces(_kernel([x, y], output))) == 1
