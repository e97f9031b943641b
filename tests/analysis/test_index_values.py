# SPDX-License-Identifier: Apache-2.0
"""Values of index expressions against those that are worked out one by one."""

import numpy as np
import pytest
from tvm import tirx

from smartmem_tvm.analysis.index_values import Indices, NoIndex, Values
from smartmem_tvm.ir.index_map import evaluate

K, J = tirx.Var("i", "int64"), tirx.Var("j", "int64")
AT = {0: np.arange(7)[:, None], 1: np.arange(5)[None, :]}
EXPRESSIONS = {
    "divisions": tirx.floordiv(K * 5 + J, 3) + tirx.floormod(K - 4, 3),
    "bounds": tirx.max(tirx.min(K - 1, tirx.const(3, "int64")), tirx.const(0, "int64")),
    "conditions": tirx.And(K < 3, tirx.Not(tirx.Or(J >= 2, tirx.EQ(K, J)))),
    "a select": tirx.Select(K < J, K * 2, J),
    "a lazy select": tirx.if_then_else(K < J, K * 2, J),
    "a cast": (K + 1).astype("int32"),
    "a constant": tirx.const(3, "int64") * tirx.const(4, "int64"),
}


@pytest.mark.parametrize("what", EXPRESSIONS)
def test_values(what):
    indices, expr = Indices([K, J]), EXPRESSIONS[what]
    expected = evaluate(expr, {K: AT[0], J: AT[1]})
    got = Values(indices, AT)[indices.number(expr)]
    np.testing.assert_array_equal(np.broadcast_to(got, (7, 5)), np.broadcast_to(expected, (7, 5)))


def test_equal_parts_have_one_number():
    indices = Indices([K, J])
    first, second = (tirx.floordiv(K * 5 + J, 3) + offset for offset in (1, 2))
    indices.number(first)
    before = len(indices.parts)
    indices.number(second)
    assert len(indices.parts) == before + 2  # the other offset, and the sum
    assert indices.number(first) == indices.number(tirx.floordiv(K * 5 + J, 3) + 1)
    assert indices.number(tirx.const(3, "int64") * 4) == indices.constant(12)


def test_positions():
    indices = Indices([K, J])
    flat = indices.row_major([0, 1], (7, 5))
    np.testing.assert_array_equal(Values(indices, AT)[flat], np.arange(35).reshape(7, 5))
    assert indices.row_major([], ()) == indices.constant(0)


def test_what_is_read_from_memory_may_be_any_element():
    table = tirx.decl_buffer((11, 3), "int32", "table")
    indices = Indices([K, J])
    got = Values(indices, AT)[indices.number(table[K, tirx.const(1, "int64")] + 100)]
    assert got.min() >= 100 and got.max() < 133 and len(np.unique(got)) > 1


def test_a_remainder_has_the_sign_of_the_dividend():
    """Ids may count from the end: ``truncmod(truncmod(id, n) + n, n)`` is how kernels take them."""
    indices, id_ = Indices([K, J]), K * 5 - J * 3
    n = tirx.const(6, "int64")
    got = Values(indices, AT)
    ids = AT[0] * 5 - AT[1] * 3
    np.testing.assert_array_equal(got[indices.number(tirx.truncmod(id_, n))], np.fmod(ids, 6))
    wrapped = got[indices.number(tirx.truncmod(tirx.truncmod(id_, n) + n, n))]
    np.testing.assert_array_equal(wrapped, ids % 6)


def test_other_variables_and_functions_are_none():
    indices = Indices([K])
    with pytest.raises(NoIndex, match="no integer arithmetic"):
        indices.number(K + J)
    with pytest.raises(NoIndex, match="no integer arithmetic"):
        indices.number(tirx.exp(K.astype("float32")))
