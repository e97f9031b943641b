# SPDX-License-Identifier: Apache-2.0
"""The conditions of the rewrite rules, decided over an `AlgebraGraph`."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

from .algebra import CONSTANT, OPAQUE, AlgebraGraph, AlgebraNode
from .match import Match, facts_of, same
from .terms import Reduce

_DEPTH = 12
_LOOKED_AT = 1 << 16  # elements of the largest constant whose numbers are examined
# Operators whose results are not negative, whatever they read (except for NaN, which every rewrite keeps) ...
_NEVER_NEGATIVE = frozenset(
    ("abs", "square", "exp", "sqrt", "rsqrt", "sigmoid", "nn.relu", "nn.softmax", "nn.relu6", "variance", "std")
)
# ... and operators whose results are not negative if no operand is.
_KEEPS_SIGN = frozenset(("add", "multiply", "divide", "power", "sum", "mean", "prod", "max", "min", "minimum"))
# Operators outside of the rules that only move the elements of one operand.
_MOVES_ONE = frozenset(("reshape", "permute_dims", "squeeze", "expand_dims", "broadcast_to", "strided_slice"))


def holds(condition: str, graph: AlgebraGraph, match: Match, root: AlgebraNode) -> bool:
    """Whether a condition of the table (``float; a >= 0``) holds for a match at `root`."""
    return all(_holds(each, graph, match, root) for each in parse_condition(condition))


@cache
def parse_condition(condition: str) -> tuple[ast.expr, ...]:
    """Return the conditions between the semicolons, parsed."""
    return tuple(ast.parse(each.strip(), mode="eval").body for each in condition.split(";") if each.strip())


def _holds(condition: ast.expr, graph: AlgebraGraph, match: Match, root: AlgebraNode) -> bool:
    match condition:
        case ast.Name(id="float"):
            return root.facts.dtype.startswith("float")
        case ast.Compare(left=ast.Name(id=name), ops=[ast.GtE()], comparators=[ast.Constant(value=0)]):
            return not_negative(graph, match.bound[name])
        case ast.Call(func=ast.Name(id=predicate), args=names):
            return _PREDICATES[predicate](match, *(match.bound[name.id] for name in names))
    raise ValueError(f"'{ast.unparse(condition)}' is no condition of a rewrite rule.")


def _alike(match: Match, first: Any, second: Any) -> bool:
    return facts_of(first).shape == facts_of(second).shape


def _steady(match: Match, value: Any) -> bool:
    """Whether a value is constant along the reduced axes, and its shape fits before and after the reduction."""
    reduce: Reduce = match.attrs
    facts = facts_of(value)
    if not facts.shape:
        return True
    missing = len(reduce.shape) - len(facts.shape)
    if missing < 0:
        return False
    if not reduce.keepdims and any(axis >= missing for axis in reduce.axes):
        return False  # its axes would no longer align with those of the result
    return all(axis < missing or facts.shape[axis - missing] == 1 for axis in reduce.axes)


_PREDICATES = {"alike": _alike, "steady": _steady}


def not_negative(graph: AlgebraGraph, value: Any, depth: int = 0) -> bool:
    """Whether no element can be below zero, judged by the operators that compute the value."""
    if depth > _DEPTH:
        return False
    if isinstance(value, AlgebraNode) and value.op == CONSTANT:
        return 0 < value.facts.size <= _LOOKED_AT and bool((graph.array(value) >= 0).all())
    opaque = isinstance(value, AlgebraNode) and value.op == OPAQUE
    op = graph.operator(value) if isinstance(value, AlgebraNode) else value.op
    below = lambda: (not_negative(graph, arg, depth + 1) for arg in value.args)  # noqa: E731
    if op in _NEVER_NEGATIVE:
        return True
    if opaque:
        return op in _MOVES_ONE and len(value.args) == 1 and all(below())
    if op == "maximum":
        return any(below())
    if op == "multiply" and same(*value.args):
        return True
    return op in _KEEPS_SIGN and all(below())
