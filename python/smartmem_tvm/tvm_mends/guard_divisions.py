# SPDX-License-Identifier: Apache-2.0
"""GuardDivisions: write quotients and remainders of shifted iterators in a form that TVM does not merge wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, sym, tirx
from tvm.s_tir import SBlockRealize

from ..ir.index_map import NotAnIndex, evaluate, is_if_then_else, variables
from ..ir.kernel import substitute
from ..ir.map_functions import map_functions
from ..ir.vectorized import lanes_of
from ..ir.walk import collect, contains

_ROUNDED = (tirx.FloorDiv, tirx.FloorMod)
_TRUNCATED = (tirx.Div, tirx.Mod)
_ACCESSES = (ir.TensorLoad, tirx.BufferStore)
_MOST_POINTS = 1 << 16  # points at which two indices are compared; larger spaces are sampled at so many


@tvm.transform.module_pass(opt_level=0, name="smartmem.GuardDivisions")
class GuardDivisions:
    """Write ``(i + c) // n`` and ``(i + c) % n``, also of falling `i`, rounded towards zero where TVM gets them wrong.

    Before::

        x[(39 - i) // 8, (39 - i) % 8 // 2, (39 - i) % 2]

    After::

        x[truncdiv(39 - i, 8), truncmod(39 - i, 8) // 2, truncmod(39 - i, 2)]

    TVM 0.27's ``iter_map_simplify``, which FlattenBuffer applies to every access, pads such iterators and forgets the
    padding: it turns the access above into ``32 - i``, and ``(b % 3 + 2) % 3`` beside another rotation into ``b % 3``.
    It leaves truncated division alone, to which code generators lower the other divisions anyway. The pass runs
    ``iter_map_simplify`` on every access with a shift and compares; an access that comes out right stays as it is. It
    runs on scheduled kernels, as the last of all passes over them.

    In vectors the truncated form is the wrong one, for example in the indices of a pool's padding, and the pass writes
    ``//`` instead: TVM turns ``truncdiv(1 - 2 * j, 2)`` over the lanes `j` into ``-j``, which is -1 and not 0 in the
    second lane.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`, scheduled or not."""
        return map_functions(mod, guarded)


def guarded(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return one PrimFunc guarded; itself if TVM gets all of its accesses right."""
    func = _without_truncated_lanes(func)
    if not contains(func.body, _ROUNDED, _is_shifted):
        return func
    space = _Space(func)
    found = set()
    for access in collect(func.body, _ACCESSES):
        shifted = [each for index in access.indices for each in collect(index, _ROUNDED) if _is_shifted(each)]
        # One truncated division keeps TVM from rewriting the whole index, so only the innermost ones are written anew.
        inner = [each for each in shifted if not contains((each.a, each.b), _ROUNDED, _is_shifted)]
        if inner and not found.issuperset(inner) and not space.merged_right(access):
            found.update(inner)
    if not found:
        return func

    def rewrite(division):
        return space.truncated(division) if division in found else division

    return func.with_body(tvm_ffi.structural_map(func.body, (_ROUNDED, rewrite)))


def _without_truncated_lanes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the PrimFunc without truncated quotients of lanes that may be negative."""
    if not contains(func.body, _TRUNCATED):
        return func
    loops = [loop for loop in collect(func.body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
    lanes = {lane for loop in loops for lane in lanes_of(loop)}
    if not any(lanes & set(variables(each.a)) for loop in loops for each in collect(loop.body, _TRUNCATED)):
        return func
    analyzer = _Space(func).analyzer

    def floored(division):
        if not _is_whole(division) or not lanes & set(variables(division.a)):
            return division
        a, n, zero = division.a, division.b, tirx.const(0, division.a.ty.dtype)
        quotient = tirx.floordiv(a, n)
        if not analyzer.can_prove(a >= zero):
            quotient = tirx.Select(a >= zero, quotient, zero - tirx.floordiv(zero - a, n))
        return quotient if isinstance(division, tirx.Div) else a - quotient * n

    return func.with_body(tvm_ffi.structural_map(func.body, (_TRUNCATED, floored)))


def _is_whole(division) -> bool:
    """Whether `division` is a quotient or remainder of an integer by a positive constant."""
    return isinstance(division.b, tirx.IntImm) and int(division.b) > 0 and not contains(division.a, ir.TensorLoad)


def _is_shifted(division) -> bool:
    """Whether the dividend has a sum with a constant, or a difference: only such iterators does TVM pad."""
    return contains(division.a, (tirx.Add, tirx.Sub, tirx.Mul), _shifts)


def _shifts(node) -> bool:
    numbers = [int(part) for part in (node.a, node.b) if isinstance(part, tirx.IntImm)]
    if isinstance(node, tirx.Mul):
        return any(number < 0 for number in numbers)
    return isinstance(node, tirx.Sub) or bool(numbers)


class _Space:
    """The iterators of a function: their ranges, and the predicates of its accesses."""

    def __init__(self, func: tirx.PrimFunc):
        self.analyzer, self.ranges = sym.Analyzer(), {}
        for loop in collect(func.body, tirx.For):
            self._bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
        for attr in collect(func.body, tirx.AttrStmt):
            if attr.attr_key == "thread_extent":
                self._bind(attr.node.var, ir.Range(0, attr.value))
        self.values: dict = {}  # iterator of a block -> its value in terms of loop variables
        for realize in reversed(collect(func.body, SBlockRealize)):  # outer ones first
            for it, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
                self.values[it.var] = substitute(value, self.values)
                self.analyzer.bind(it.var, it.dom)
        self.conditions: dict = {}  # what a condition is -> the condition, in terms of loop variables
        self.around: dict[int, dict] = {}  # hash of an access -> the conditions around it
        for branch in collect(func.body, (tirx.IfThenElse, ir.Call)):
            if isinstance(branch, tirx.IfThenElse) or _chooses(branch):
                condition = substitute(_condition(branch), self.values)
                key = tvm_ffi.StructuralKey(condition)  # unrolled loops repeat a condition once for each step
                self.conditions.setdefault(key, condition)
                for access in collect(branch, _ACCESSES):
                    self.around.setdefault(hash(access), {})[key] = None
        self.right: dict = {}  # flat index, and the conditions around it -> result of `merged_right`

    def _bind(self, var, span: ir.Range) -> None:
        self.analyzer.bind(var, span)
        self.ranges[var] = span

    def merged_right(self, access) -> bool:
        """Whether the access, as TVM rewrites it, touches the same element everywhere."""
        buffer = access.source if isinstance(access, ir.TensorLoad) else access.buffer
        flat = substitute(_flat(list(access.indices), list(buffer.shape)), self.values)
        around = tuple(self.around.get(hash(access), ()))
        key = tvm_ffi.StructuralKey(flat), around  # an update loads and stores at one index, which is checked once
        if key not in self.right:
            self.right[key] = self._right(flat, [self.conditions[each] for each in around])
        return self.right[key]

    def _right(self, flat, conditions: list) -> bool:
        anywhere = set()
        values: dict = {}  # variables -> their points, and the index there
        for merged, predicate in self._merged(flat, conditions):
            key = tvm_ffi.StructuralKey(merged)
            if key in anywhere:
                continue
            same = self._same(flat, merged, predicate, values)
            if same is None:
                return False
            # Right without a predicate, or also where the predicate does not hold, and so under any predicate.
            if same or isinstance(predicate, tirx.IntImm):
                anywhere.add(key)
        return True

    def _merged(self, flat, conditions: list) -> Iterator[tuple]:
        """Yield each form that TVM may rewrite an index to, with its predicate: it knows the conditions around it."""
        mine = set(variables(flat))
        touching = [each for each in conditions if mine & set(variables(each))]
        predicates = [tirx.const(True, "bool"), *touching, *([tirx.all(*touching)] if len(touching) > 1 else [])]
        simplified = self.analyzer.simplify(flat)
        for predicate in predicates:
            with self.analyzer.constraint_scope(predicate):
                under = self.analyzer.simplify(flat)
            for expr in (flat, simplified, *(() if tvm_ffi.structural_equal(under, simplified) else (under,))):
                try:
                    yield sym.iter_map_simplify([expr], self.ranges, predicate)[0], predicate
                except (RuntimeError, ValueError, TypeError):
                    continue  # lowering raises the same error, if it meets this form

    def _same(self, first, second, predicate, values: dict) -> bool | None:
        """Return whether two indices are equal everywhere; None if they differ somewhere where `predicate` holds."""
        if tvm_ffi.structural_equal(first, second):
            return True
        if contains(predicate, ir.TensorLoad) or not set(variables(predicate)) <= self.ranges.keys():
            predicate = tirx.const(True, "bool")  # not evaluated here: it may hold anywhere
        vars_ = tuple(dict.fromkeys([*variables(first), *variables(second), *variables(predicate)]))
        if not all(var in self.ranges and isinstance(self.ranges[var].extent, tirx.IntImm) for var in vars_):
            return None
        try:
            if vars_ not in values:
                points = _points({var: (int(self.ranges[var].min), int(self.ranges[var].extent)) for var in vars_})
                values[vars_] = points, evaluate(first, points)
            points, expected = values[vars_]
            differ = expected != evaluate(second, points)
            if not np.any(differ):
                return True
            return None if _holds_at_one(predicate, points, differ) else False
        except (NotAnIndex, ZeroDivisionError):
            return None

    def truncated(self, division):
        """Return an equal expression that rounds towards zero."""
        a, n, dtype = division.a, division.b, division.a.ty.dtype
        quotient = isinstance(division, tirx.FloorDiv)
        if self.analyzer.can_prove(tirx.all(a >= tirx.const(0, dtype), n > tirx.const(0, dtype))):
            return tirx.truncdiv(a, n) if quotient else tirx.truncmod(a, n)
        rest, zero = tirx.truncmod(a, n), tirx.const(0, dtype)
        turns = tirx.any(tirx.all(rest < zero, n > zero), tirx.all(rest > zero, n < zero))
        if quotient:
            return tirx.truncdiv(a, n) - tirx.Select(turns, tirx.const(1, dtype), zero)
        return rest + tirx.Select(turns, n, zero)


def _flat(indices: list, shape: list):
    """Return the row-major position, in the type of the indices."""
    flat, *rest = indices
    for index, extent in zip(rest, shape[1:], strict=True):
        flat = flat * _as(extent, index.ty.dtype) + index
    return flat


def _as(extent, dtype):
    return tirx.const(int(extent), dtype) if isinstance(extent, tirx.IntImm) else extent


def _chooses(node) -> bool:
    return isinstance(node, ir.Call) and is_if_then_else(node)


def _condition(branch):
    return branch.condition if isinstance(branch, tirx.IfThenElse) else branch.args[0]


def _holds_at_one(predicate, points: dict, chosen: np.ndarray) -> bool:
    """Whether a predicate holds at one of the chosen points; parts of it are evaluated where those before hold."""
    shape = np.broadcast_shapes(np.shape(chosen), *map(np.shape, points.values()))
    chosen = np.broadcast_to(chosen, shape)
    left = {var: np.broadcast_to(numbers, shape)[chosen] for var, numbers in points.items()}
    for part in sorted(_parts(predicate), key=lambda each: len(set(variables(each)))):
        holds = np.asarray(evaluate(part, left), bool)
        if not np.any(holds):
            return False
        if holds.ndim:
            left = {var: numbers[holds] for var, numbers in left.items()}
    return True


def _parts(predicate) -> list:
    if isinstance(predicate, tirx.And):
        return [*_parts(predicate.a), *_parts(predicate.b)]
    return [predicate]


def _points(spans: dict) -> dict:
    """Return values of each variable: all combinations, one axis per variable, or a sample if they are too many."""
    total = prod(extent for _, extent in spans.values())
    if total <= _MOST_POINTS:
        numbers = np.ogrid[tuple(slice(0, extent) for _, extent in spans.values())] if spans else []
    else:
        draw = np.random.default_rng(0)
        numbers = [draw.integers(0, extent, _MOST_POINTS) for _, extent in spans.values()]
    return {var: start + number for (var, (start, _)), number in zip(spans.items(), numbers, strict=False)}
