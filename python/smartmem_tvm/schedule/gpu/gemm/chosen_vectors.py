# SPDX-License-Identifier: Apache-2.0
"""Vectorise selects: concatenated tensors, padding with arithmetic on it.

    v[0:8] = f(if k < 64 then a[k + 0:8] else b[k + 0:8])
    ->
    if k < 64: chosen[0:8] = a[k + 0:8]  else: chosen[0:8] = b[k + 0:8];   v[0:8] = f(chosen[0:8])

A condition that is the same for a whole vector is evaluated once, and each of the tensors is then loaded as a vector if
its elements are contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import tvm_ffi
from tvm import ir, tirx

from ....ir.index_map import is_if_then_else
from ....ir.kernel import shape_of, substitute
from ....ir.walk import collect, loads
from ...core.expressions import Walk, replace_loads, uses
from ...core.nest import UNROLL, Scope, allocate, block, fresh, index, store
from ...core.nest import VECTOR as VECTORIZED
from ..launch import registers
from ..vectors import are_vectors, longest_run, places_of
from .operand import Operand

_ORDERS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_COMPARISONS = (*_ORDERS, tirx.EQ, tirx.NE)


def chosen_run(operand: Operand, along_depth: bool, most: int) -> int:
    """Return the longest vector along an operand's depth, or outer index, in which no condition changes.

    1 if there is no select, if a condition changes within every vector, or if most elements are not contiguous.
    """
    value, extent, outer = operand.along(along_depth)
    return longest_run(extent, most, lambda run: _goes_in_runs(value, extent // run, run, outer))


def _goes_in_runs(value, vectors: int, run: int, outer: Mapping) -> bool:
    number, within = fresh("number"), fresh("within")
    walk = Walk({**outer, number: vectors, within: run})
    whole = apart = 0
    waiting = [value(number * index(run) + within)]
    while waiting:
        expr = waiting.pop()
        for choice in _choices(expr):
            if not _holds_for_all(walk, choice.args[0], within, run):
                return False
            waiting += choice.args[1:]
            expr = _without(expr, choice, tirx.const(0, choice.ty.dtype))
        size = sum(prod(shape_of(load.source)) for load in loads(expr))
        whole, apart = (whole + size, apart) if _is_vector(walk, expr, within, run) else (whole, apart + size)
    return whole > apart


def _holds_for_all(walk: Walk, condition, within, run: int) -> bool:
    """Whether a condition holds for all of ``[0, run)`` or for none."""
    ends = [walk.analyzer.simplify(substitute(condition, {within: index(at)})) for at in (0, run - 1)]
    orders = [each for each in collect(condition, _COMPARISONS) if uses(each, [within])]
    rising = all(isinstance(each, _ORDERS) and walk.step(each.a - each.b, within) is not None for each in orders)
    return rising and tvm_ffi.structural_equal(*ends)


def fill(scope: Scope, target, first, within: tirx.Var, value, width: int) -> tirx.Stmt:
    """Return ``target[first + within] = value`` for each `within` of a vector, with each select evaluated once.

    Parameters
    ----------
    within : tirx.Var
        Bound in the analyzer of `scope` to ``[0, width)``.
    """
    if is_if_then_else(value):
        condition, *sides = value.args
        ways = [fill(scope, target, first, within, side, width) for side in sides]
        return tirx.IfThenElse(scope.analyzer.simplify(substitute(condition, {within: index(0)})), *ways)
    before, kept = [], []
    for choice in _choices(value):
        part = registers(width, choice.ty.dtype, "chosen")
        before.append(fill(scope, part, index(0), within, choice, width))
        kept.append(part)
        value = _without(value, choice, part[within])
    walk = Walk({within: width})
    walk.analyzer = scope.analyzer
    kind = VECTORIZED if _is_vector(walk, value, within, width) else UNROLL
    body = scope.loop(
        width, lambda v: scope.simplify(store(target, substitute(value, {within: v}), first + v)), "v", kind
    )
    return allocate(kept, block(*before, body)) if kept else body


def _choices(value) -> list[ir.Call]:
    """Return the outermost selects in a value, without those in an index."""
    hidden = {}

    def hide(load):
        var = tirx.Var("read", load.ty.dtype)
        hidden[var] = load
        return var

    found = [each for each in collect(replace_loads(value, hide), ir.Call) if is_if_then_else(each)]
    inner = [one for each in found for side in each.args for one in collect(side, ir.Call) if is_if_then_else(one)]
    outer = [each for each in found if not any(each.same_as(one) for one in inner)]
    return [substitute(each, hidden) for each in outer]


def _without(value, choice: ir.Call, instead):
    """Return the value with a select replaced by `instead`."""

    def rewrite(call: ir.Call):
        return instead if is_if_then_else(call) and tvm_ffi.structural_equal(call, choice) else call

    return tvm_ffi.structural_map(value, (ir.Call, rewrite))


def _is_vector(walk: Walk, value, within, run: int) -> bool:
    places = places_of(value)
    return places is not None and are_vectors(walk, places, within, run)
