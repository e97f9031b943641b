# SPDX-License-Identifier: Apache-2.0
"""Tensors by other names: variables, tuples, items of tuples, and tuples in tuples."""

from tvm import relax

from smartmem_tvm.ir.aliases import Aliases

TENSOR = relax.TensorType((4,), "float32")
PAIR = relax.TupleType([TENSOR, TENSOR])


def test_an_item_of_a_tuple_is_one_tensor():
    a, b = (relax.Var(name, TENSOR) for name in "ab")
    pair, item, again = relax.Var("pair", PAIR), relax.Var("item", TENSOR), relax.Var("again", TENSOR)
    found = Aliases()
    found.bind(a, "A")
    found.bind(b, "B")
    assert found.follow(pair, relax.Tuple([a, b])) and found.follow(item, relax.TupleGetItem(pair, 1))
    assert found.follow(again, item)
    assert [found.used(each) for each in (pair, item, again)] == [["A", "B"], ["B"], ["B"]]
    assert found.used(relax.TupleGetItem(pair, 0)) == ["A"]
    assert found.used(relax.Tuple([pair, a])) == ["A", "B"]


def test_what_is_not_known_is_no_tensor():
    x, y = (relax.Var(name, TENSOR) for name in "xy")
    found = Aliases()
    assert found.follow(y, x) and found.used(y) == []
    call = relax.op.add(x, y)
    assert not found.follow(y, call)
    found.bind(x, ("A", None))
    assert found.used(call) == ["A"]
