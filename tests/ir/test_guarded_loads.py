# SPDX-License-Identifier: Apache-2.0
"""Loads come in the order of evaluation, each with the conditions under which it happens."""

from tvm import ir, tirx

from smartmem_tvm.ir.guarded_loads import guarded_loads

AT = tirx.Var("i", "int32")
A, B, C = (tirx.decl_buffer((8,), "int32", name) for name in "abc")


def found(expr) -> list[tuple]:
    return [(load.source.name, [(str(c), held) for c, held in guards]) for load, guards in guarded_loads(expr, ())]


def test_an_index_is_loaded_before_what_it_points_to():
    assert found(A[B[AT]] + C[AT]) == [("b", []), ("a", []), ("c", [])]


def test_a_branch_guards_what_is_in_it_and_its_condition_is_not_guarded():
    expr = tirx.if_then_else(A[AT] > 0, B[C[AT]], tirx.if_then_else(AT < 4, C[AT], tirx.const(0)))
    outer, inner = str(A[AT] > 0), str(AT < 4)
    yes, no = (outer, True), (outer, False)
    assert found(expr) == [("a", []), ("c", [yes]), ("b", [yes]), ("c", [no, (inner, True)])]


def test_a_select_and_a_call_guard_nothing():
    expr = tirx.Select(A[AT] > 0, tirx.popcount(B[AT]), tirx.Cast("int32", C[AT]))
    assert found(expr) == [("a", []), ("b", []), ("c", [])]


def test_guards_from_outside_come_first():
    ((load, guards),) = guarded_loads(A[AT] * 2, ((AT < 4, True),))
    assert isinstance(load, ir.TensorLoad) and [held for _, held in guards] == [True]
