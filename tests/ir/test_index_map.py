# SPDX-License-Identifier: Apache-2.0
"""Evaluation of index maps and the questions asked of them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import ir, relax, tirx

from index_expressions import EXTENTS, VARIABLES, I, J, K, X, const, expressions, values
from smartmem_tvm.ir.index_map import (
    NotAnIndex,
    division_count,
    divisor_chain,
    evaluate,
    flat_index,
    function_name,
    grid,
    is_identity,
    is_injective,
    stays_inside,
    unflatten,
    variables,
    visits_once,
)

# --- questions ----------------------------------------------------------------------------------------------------


@given(st.lists(expressions(depth=2), min_size=1, max_size=3), EXTENTS)
def test_injective_against_enumeration(indices, sizes):
    extents = dict(zip(VARIABLES, sizes))
    points = list(zip(*(values(index, extents).ravel().tolist() for index in indices)))
    assert is_injective(indices, extents) == (len(set(points)) == len(points))


@given(st.lists(expressions(depth=2), min_size=1, max_size=2), EXTENTS, st.integers(1, 40))
def test_stays_inside_against_enumeration(indices, sizes, limit):
    extents = dict(zip(VARIABLES, sizes))
    inside = all((values(i, extents) >= 0).all() and (values(i, extents) < limit).all() for i in indices)
    assert stays_inside(indices, extents, [limit] * len(indices)) == inside


@pytest.mark.parametrize("wide", [False, True], ids=["in a small box", "in a wide box"])
def test_large_spaces(wide):
    """Past `_LARGE_SPACE` points TVM's iterator analysis answers where it can; the rest is enumerated."""
    extents, scale = {I: 256, J: 300}, 4096 if wide else 1
    flat = I * 300 + J
    assert is_injective([flat // 1000 * scale, flat % 1000], extents)
    assert is_injective([(I + 5) % 256 * scale, J], extents), "a rotation"
    assert is_injective([I * scale, (I + J) % 300], extents), "a skewed rotation, which TVM cannot split"
    assert not is_injective([flat // 2 * scale], extents)
    assert not is_injective([I * scale, (I + J) % 299], extents)
    assert not is_injective([(I + J) * scale], extents)


def test_visits_once_wants_both():
    assert visits_once([J, I], {I: 3, J: 3}, (3, 3))
    assert not visits_once([I, I], {I: 3, J: 3}, (3, 3))
    assert not visits_once([J, I + 1], {I: 3, J: 3}, (3, 3))


def test_an_index_read_from_a_tensor_is_unknown():
    table = tirx.decl_buffer((3,), "int64", "table")
    assert not is_injective([table[I]], {I: 3})
    assert not stays_inside([table[I]], {I: 3}, (3,))


def test_identity_compares_maps_not_shapes():
    square = {I: 4, J: 4}
    assert is_identity([I, J], [I, J], square)
    assert not is_identity([J, I], [I, J], square)
    assert not is_identity([I], [I, J], square)
    assert not is_identity([I, const(0)], [I, J], square)
    assert is_identity([I, const(0)], [I, J], {I: 4, J: 1})


# --- evaluation ---------------------------------------------------------------------------------------------------

A, B = np.meshgrid(np.arange(-7, 8), np.arange(1, 6), indexing="ij")
OPERATIONS = {
    "add": (I + J, A + B),
    "subtract": (I - J, A - B),
    "multiply": (I * J, A * B),
    "floor division of negatives": (tirx.FloorDiv(I, J), A // B),
    "modulo of negatives": (tirx.FloorMod(I, J), A % B),
    "minimum": (tirx.Min(I, J), np.minimum(A, B)),
    "maximum": (tirx.Max(I, J), np.maximum(A, B)),
    "select": (tirx.Select(I < J, I, J), np.where(A < B, A, B)),
    "lazy select": (tirx.if_then_else(I >= J, I, J), np.where(A >= B, A, B)),
    "and, or, not": (
        tirx.Select(tirx.Or(tirx.And(I <= J, I > 0), tirx.Not(I != J)), const(1), const(0)),
        ((A <= B) & (A > 0)) | (A == B),
    ),
    "equal": (tirx.Select(tirx.EQ(I, J), const(1), const(0)), A == B),
    "cast": (tirx.Cast("int32", I), A),
    "constant": (const(3), np.full_like(A, 3)),
}


@pytest.mark.parametrize(("expr", "expected"), OPERATIONS.values(), ids=OPERATIONS.keys())
def test_evaluate(expr, expected):
    got = evaluate(expr, {I: np.arange(-7, 8)[:, None], J: np.arange(1, 6)[None]})
    np.testing.assert_array_equal(np.broadcast_to(got, A.shape), expected)


@pytest.mark.parametrize("expr", [X[I, J], tirx.Var("unbound", "int64"), tirx.const(1.5, "float32")], ids=str)
def test_what_is_no_index_is_refused(expr):
    with pytest.raises(NotAnIndex):
        evaluate(expr, {I: np.arange(3), J: np.arange(3)})


def test_variables_come_once_and_without_buffers():
    assert [v.name for v in variables(J * 2 + I + J + X[K, I])] == ["j", "i", "k"]


def test_variables_of_a_variable_and_of_a_constant():
    assert variables(I)[0].same_as(I) and variables(const(3)) == [] and variables(X) == []


def test_of_two_branches_the_longer_one_counts():
    long, short = (I // 3) % 5, J % 2
    assert division_count(long + short) == 3
    assert division_count(tirx.if_then_else(J // 2 < 1, long, short)) == 1 + 2
    assert division_count(tirx.if_then_else(J < 1, short, tirx.if_then_else(I < 1, short, long))) == 2
    assert division_count(X[tirx.popcount(I // 3), J % 2]) == 2, "a call that is no branch adds up"
    assert division_count(I) == 0


def test_divisors_form_a_chain_up_to_the_extent():
    assert divisor_chain([I // 4, I % 4], I, 24) == [1, 4, 24]
    assert divisor_chain([(I // 2) % 6], I, 24) == [1, 2, 12, 24], "cut at 2 and at 2 * 6"
    assert divisor_chain([X[I // 4, J // 3]], I, 24) == [1, 4, 24], "those of other iterators do not count"
    assert divisor_chain([I // 4, I % 6], I, 24) == [1, 24], "6 is no multiple of 4"
    assert divisor_chain([I // 5], I, 24) == [1, 24]
    assert divisor_chain([I + J], I, 24) == [1, 24]


def test_function_name():
    assert function_name(tirx.exp(tirx.const(1.0, "float32"))) == "exp"
    assert function_name(tirx.if_then_else(I < 1, I, J)) == "if_then_else"
    assert function_name(ir.Call(relax.ExternFunc("f"), [])) == ""


def test_grid_spans_the_space():
    space = grid([I, J], {I: 2, J: 3})
    points = np.broadcast_arrays(space[I], space[J])
    assert list(zip(points[0].ravel(), points[1].ravel())) == list(itertools.product(range(2), range(3)))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_flat_index_is_row_major(shape):
    vars_ = VARIABLES[: len(shape)]
    extents = dict(zip(vars_, shape))
    flat = values(flat_index(vars_, shape), extents)
    np.testing.assert_array_equal(flat.ravel(), np.arange(math.prod(shape)))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_unflatten_is_the_inverse_of_flat_index(shape):
    """Each position of a tensor, in order, as the index of its axes."""
    size = math.prod(shape)
    indices = [values(index, {I: size}) for index in unflatten(I, shape)]
    np.testing.assert_array_equal(np.stack(indices), np.indices(shape).reshape(len(shape), -1))
