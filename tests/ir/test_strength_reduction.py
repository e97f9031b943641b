# SPDX-License-Identifier: Apache-2.0
"""Strength reduction of index expressions: cheaper, and never another value."""

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import ir, sym, tirx

from index_expressions import EXTENTS, VARIABLES, I, J, X, const, expressions, values
from smartmem_tvm.ir.index_map import division_count
from smartmem_tvm.ir.strength_reduction import Simplifier, rotation, strength_reduction


def simplified(expr, **extents):
    return Simplifier({v: extents.get(v.name, 1) for v in VARIABLES}).index(expr)


@given(b=st.integers(1, 12), k=st.integers(1, 12), extent=st.integers(2, 400))
def test_modulo_of_a_multiple(b, k, extent):
    """SmartMem: ``i % a % b -> i % b`` when ``b`` divides ``a``."""
    result = simplified(I % (b * k) % b, i=extent)
    assert division_count(result) == (0 if b == 1 or extent <= b else 1)
    np.testing.assert_array_equal(values(result, {I: extent}), np.arange(extent) % b)


@given(a=st.integers(2, 12), b=st.integers(2, 12), extent=st.integers(2, 400))
def test_division_of_a_division(a, b, extent):
    """``i // a // b -> i // (a * b)``."""
    result = simplified(I // a // b, i=extent)
    assert division_count(result) == (0 if extent <= a * b else 1)
    np.testing.assert_array_equal(values(result, {I: extent}), np.arange(extent) // (a * b))


@given(outer=st.integers(1, 9), inner=st.integers(2, 9))
def test_merge_then_split_is_identity(outer, inner):
    """The split dependency undoes the merge dependency: ``(i * n + j) // n -> i`` and ``% n -> j``."""
    merged = I * inner + J
    quotient, rest = (simplified(e, i=outer, j=inner) for e in (merged // inner, merged % inner))
    assert rest.same_as(J)
    assert quotient.same_as(I) or (outer == 1 and int(quotient) == 0)


@given(outer=st.integers(2, 9), inner=st.integers(2, 9))
def test_split_then_merge_is_identity(outer, inner):
    assert simplified(I // inner * inner + I % inner, i=outer * inner).same_as(I)


@given(rows=st.integers(2, 40))
def test_rows_that_are_shifted_by_their_number(rows):
    """Relative positions of Transformer-XL: 2 n numbers a row, read as if they were 2 n - 1, make a parallelogram."""
    flat, width = I * (2 * rows - 1) + J + rows, 2 * rows
    quotient, rest = (simplified(e, i=rows, j=rows) for e in (flat // width, flat % width))
    assert quotient.same_as(I) and division_count(rest) == 0
    extents = {I: rows, J: rows}
    np.testing.assert_array_equal(values(rest, extents), values(flat, extents) % width)
    assert division_count(simplified((flat + rows) // width, i=rows, j=rows)) == 1, "some are in the next row"


@given(expressions(), EXTENTS)
def test_simplified_expressions_have_the_same_values(expr, sizes):
    extents = dict(zip(VARIABLES, sizes))
    result = Simplifier(extents).index(expr)
    assert division_count(result) <= division_count(expr)
    np.testing.assert_array_equal(values(result, extents), values(expr, extents))


@given(expressions(), expressions(), EXTENTS)
def test_simplified_accesses_read_the_same_element(row, column, sizes):
    """Also where the position in memory is simpler than row and column."""
    extents = dict(zip(VARIABLES, sizes))
    indices = [tirx.floormod(row, const(sizes[0])), tirx.floormod(column, const(sizes[1] * sizes[2]))]
    result = Simplifier(extents).indices(indices, [const(sizes[0]), const(sizes[1] * sizes[2])])
    for mine, index in zip(result, indices, strict=True):
        np.testing.assert_array_equal(values(mine, extents), values(index, extents))


def test_rotations_of_one_fused_index_stay_right():
    """Regression: together these two make TVM 0.27 drop the offset of the second."""
    for expr in ((I // 3 + 2) % 3, (I % 3 + 2) % 3):
        np.testing.assert_array_equal(values(simplified(expr, i=9), {I: 9}), values(expr, {I: 9}))


def test_tvm_still_confuses_rotations():
    """TVM 0.27 turns the second index into ``(i + 6) % 3``, which has lost its offset.

    If this fails, TVM is mended: drop the swap of modulos in `ir.kernel`; what is left of `LowerRotations`
    is a saved division.
    """
    indices = [(I // 3 + 2) % 3, (I % 3 + 2) % 3]
    wrong = sym.iter_map_simplify(indices, {I: ir.Range(0, 9)})
    assert not np.array_equal(values(wrong[1], {I: 9}), values(indices[1], {I: 9}))


def test_a_difference_that_tvm_cannot_simplify():
    """TVM 0.27's iter_map_simplify divides by zero here; the expression must come through as it is."""
    expr = I // 2 - (I + 2) // 2
    np.testing.assert_array_equal(values(simplified(expr, i=121), {I: 121}), -1)
    inside = X[tirx.floordiv(I, const(22)) - tirx.floordiv(I + 121, const(22)) + 7, J]
    body = Simplifier({I: 121, J: 8}).body(inside)
    np.testing.assert_array_equal(values(body.indices[0], {I: 121}), values(inside.indices[0], {I: 121}))


def test_a_wrong_simplification_is_not_believed(monkeypatch):
    """Cheaper is not enough: the candidate must have the same values."""
    monkeypatch.setattr(sym, "iter_map_simplify", lambda indices, ranges: [I for _ in indices])
    expr = (I * 3 + J) // 2
    np.testing.assert_array_equal(values(simplified(expr, i=5, j=3), {I: 5, J: 3}), values(expr, {I: 5, J: 3}))


def test_a_select_between_equal_values_is_no_select():
    load = Simplifier({I: 8, J: 8}).body(tirx.if_then_else(I + J >= 5, X[I, J], X[I, J]))
    assert isinstance(load, ir.TensorLoad)


# --- rotation -----------------------------------------------------------------------------------------------------


def rotated(condition, yes, no, **extents):
    return rotation(condition, yes, no, {v: ir.Range(0, extents.get(v.name, 1)) for v in VARIABLES})


def test_slice_slice_concat_is_a_rotation():
    result = rotated(I >= 5, X[I - 5, J], X[I + 3, J], i=8, j=8)
    row, column = result.indices
    np.testing.assert_array_equal(values(row, {I: 8}), (np.arange(8) + 3) % 8)
    assert column.same_as(J)


def test_rotation_of_a_part():
    """Rows 2 to 7 rotate, whatever lies around them."""
    result = rotated(I >= 4, X[I - 2, J], X[I + 4, J], i=6, j=8)
    np.testing.assert_array_equal(values(result.indices[0], {I: 6}), [4, 5, 6, 7, 2, 3])


@given(expressions(depth=2), expressions(depth=2), st.integers(1, 12), EXTENTS, st.booleans())
def test_what_is_taken_for_a_rotation_is_one(yes, no, cut, sizes, continued):
    """Random branches, half of which continue each other past the end, as those of a roll do."""
    extents = dict(zip(VARIABLES, sizes))
    size = extents[I]
    if cut >= size:
        return
    if continued:
        no = tvm_ffi.structural_map(yes, (ir.Var, lambda v: v + size if v.same_as(I) else v))
    line = tirx.decl_buffer((10**6,), "float32")
    result = rotation(cut <= I, line[yes], line[no], {v: ir.Range(0, extent) for v, extent in extents.items()})
    if result is not None:
        expected = values(tirx.Select(cut <= I, yes, no), extents)
        np.testing.assert_array_equal(values(result.indices[0], extents), expected)


@pytest.mark.parametrize(
    ("condition", "yes", "no"),
    [
        (I >= 5, X[I - 5, J], X[I + 2, J]),  # overlaps
        (I >= 5, X[I - 5, J], X[7 - I, J]),  # one half is mirrored
        (I >= 5, X[I - 5, J], X[I + 3, 7 - J]),  # the other axis differs
        (J >= 5, X[I, J], X[J, I]),
        (I + J >= 5, X[I, J], X[I, J]),  # not a cut of one axis
        (I >= 5, X[I - 5, J], tirx.const(0, "float32")),  # a padding
    ],
)
def test_other_selects_are_no_rotations(condition, yes, no):
    assert rotated(condition, yes, no, i=8, j=8) is None


def test_two_tensors_are_no_rotation():
    y = tirx.decl_buffer((8, 8), "float32", "y")
    assert rotated(I >= 5, X[I - 5, J], y[I + 3, J], i=8, j=8) is None


def test_it_can_be_switched_off():
    """Then only TVM's analyzer looks at an index; what is computed stays the same."""
    index = (I % 12 + 3) % 4
    with strength_reduction(False):
        plain = simplified(index, i=24)
    assert division_count(plain) > division_count(simplified(index, i=24))
    np.testing.assert_array_equal(values(plain, {I: 24}), values(index, {I: 24}))
