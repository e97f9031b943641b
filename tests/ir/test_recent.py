# SPDX-License-Identifier: Apache-2.0
"""What is kept about nodes, and for how long."""

from tvm import tirx

from smartmem_tvm.ir.recent import Recent


def test_the_same_object_is_asked_for_once():
    made, recent = [], Recent(2)
    one, other = tirx.Var("x", "int32"), tirx.Var("x", "int32")
    for node in (one, one, other, one, other):
        assert recent.get(node, lambda node=node: made.append(node) or node.name) == "x"
    assert len(made) == 2 and made[0].same_as(one) and made[1].same_as(other)


def test_nothing_is_an_answer_too():
    made, node, recent = [], tirx.Var("x", "int32"), Recent(2)
    assert [recent.get(node, lambda: made.append(1)) for _ in range(3)] == [None] * 3
    assert made == [1]


def test_what_else_an_answer_depends_on():
    node, recent = tirx.Var("x", "int32"), Recent(4)
    assert [recent.get(node, lambda state=state: state, state) for state in (1, 2, 1)] == [1, 2, 1]


def test_the_oldest_goes():
    nodes, recent = [tirx.Var("x", "int32") for _ in range(5)], Recent(3)
    for node in nodes:
        recent.get(node, lambda: "old")
    assert [recent.get(node, lambda: "new") for node in nodes[2:]] == ["old"] * 3
    assert recent.get(nodes[0], lambda: "new") == "new"
