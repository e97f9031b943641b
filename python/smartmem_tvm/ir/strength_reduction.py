# SPDX-License-Identifier: Apache-2.0
"""Strength reduction of index expressions (SmartMem 3.2.1).

Composed layout operators leave chains of ``//`` and ``%``. The ranges of the iterators reduce these to identity, split
and merge dependencies: ``i % a % b -> i % b`` if ``b`` divides ``a``, a reshape and its inverse cancel, and a roll,
which arrives as a select between two slices, becomes one modulo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

import numpy as np
import tvm_ffi
from tvm import ir, sym, tirx

from .._tvm import mapped
from .index_map import (
    DIVISIONS,
    LEAVES,
    NotAnIndex,
    division_count,
    evaluate,
    flat_index,
    grid,
    is_if_then_else,
    unflatten,
    variables,
)
from .walk import collect, contains

# Points; maps are compared by value on spaces up to this size. On larger ones an unproved simplification is not made.
_LARGEST_SPACE = 1 << 22


_reducing: ContextVar[bool] = ContextVar("smartmem.strength_reduction", default=True)


@contextmanager
def strength_reduction(on: bool) -> Iterator[None]:
    """Switch strength reduction on or off, for ablations; off leaves each index to TVM's analyzer alone."""
    before = _reducing.set(on)
    try:
        yield
    finally:
        _reducing.reset(before)


def reduces_strength() -> bool:
    """Whether strength reduction is on."""
    return _reducing.get()


def _span(var, low: int, high: int) -> ir.Range:
    """Return ``[low, high)`` in the variable's dtype: TVM substitutes bounds for the variable without a cast."""
    dtype = var.ty.dtype
    return ir.Range(tirx.const(low, dtype), tirx.const(high, dtype))


def rewrite_accesses(node, callbacks: Sequence[tuple], index: Callable):
    """Map loads and selects by `callbacks`, pairs of a node type and a function, and store indices by `index`.

    If TVM raises in a callback, the node stays unchanged: an error that leaves a callback of tvm_ffi corrupts memory.
    """

    def store(st):
        return tirx.BufferStore(st.buffer, st.value, [index(i) for i in st.indices[:]])

    everything = (*callbacks, (tirx.BufferStore, store))
    return mapped(node, *((kind, _or_as_it_was(rewrite)) for kind, rewrite in everything))


def _or_as_it_was(rewrite: Callable) -> Callable:
    def guarded(node):
        try:
            return rewrite(node)
        except (RuntimeError, TypeError):
            return node

    return guarded


class Simplifier:
    """Strength reduction of index expressions under known iterator ranges.

    Parameters
    ----------
    extents : mapping of tirx.Var to int
        Every iterator runs over ``[0, extent)``.
    """

    def __init__(self, extents: Mapping):
        self.ranges = {var: _span(var, 0, extent) for var, extent in extents.items()}
        # By address: to compare variables takes longer.
        self.moving = {hash(var) for var, extent in extents.items() if int(extent) > 1}

    @cached_property
    def analyzer(self) -> sym.Analyzer:
        """TVM's analyzer with the ranges, created on demand: most accesses are at bare iterators and need none."""
        analyzer = sym.Analyzer()
        for var, rng in self.ranges.items():
            analyzer.bind(var, rng)
        return analyzer

    def _simplified(self, expr):
        return with_positive_divisors(self.analyzer.simplify(expr))

    def index(self, expr):
        """Return the equal form of an index expression with the fewest ``//`` and ``%``."""
        if self._is_simple(expr):
            return expr
        plain = self._simplified(expr)
        if not _reducing.get() or division_count(plain) == 0:
            return plain
        for rewrite in (self._modulo_of_modulo, self._merged, self._without_multiples):
            if division_count(plain):
                plain = self._cheaper(plain, self._simplified(rewrite(plain)))
        return plain

    def _is_simple(self, expr) -> bool:
        return hash(expr) in self.moving if isinstance(expr, ir.Var) else isinstance(expr, tirx.IntImm)

    def indices(self, indices: Sequence, shape: Sequence) -> list:
        """Return the cheapest equal form of the indices of an access to a tensor of `shape`.

        Besides each single index, the row-major position is simplified: a chain of reshapes and its inverse is the
        identity as a whole, though no single index shows it.
        """
        simple = [self.index(i) for i in indices[:]]
        divisions = sum(map(division_count, simple))
        if not _reducing.get() or divisions == 0:
            return simple
        found = {v for i in simple for v in variables(i)}
        used = [v for v in self.ranges if v in found]
        extents = [int(self.ranges[v].extent) for v in used]
        sizes = [int(size) for size in shape] if all(isinstance(size, tirx.IntImm | int) for size in shape) else []
        if math.prod(extents) != math.prod(sizes):
            return simple
        straight = flat_index(used, extents)
        split = [self._simplified(part) for part in unflatten(straight, sizes)]
        if sum(map(division_count, split)) >= divisions or not self._equal(straight, flat_index(simple, sizes)):
            return simple
        return split

    def _merged(self, expr):
        try:
            return sym.iter_map_simplify([expr], self.ranges)[0]
        except RuntimeError:  # TVM divides by zero on v // 2 - (v + 2) // 2
            return expr

    def _cheaper(self, plain, other):
        return other if division_count(other) < division_count(plain) and self._equal(plain, other) else plain

    @staticmethod
    def _modulo_of_modulo(expr):
        """``((a % n) + c) % m -> (a + c) % m`` where ``m`` divides ``n``."""

        def rewrite(modulo):
            total = modulo.a
            if not (isinstance(total, tirx.Add) and isinstance(total.a, tirx.FloorMod)):
                return modulo
            inner = total.a
            if not all(isinstance(e, tirx.IntImm) for e in (inner.b, modulo.b)) or int(inner.b) % int(modulo.b):
                return modulo
            return tirx.floormod(inner.a + total.b, modulo.b)

        return tvm_ffi.structural_map(expr, (tirx.FloorMod, rewrite))

    def _without_multiples(self, expr):
        """``(255 i + j + 128) // 256 -> i``, ``% 256 -> j - i + 128`` for i, j below 128: rows shifted by their number.

        Each coefficient is split into the nearest multiple of the divisor and a rest. The rewrite applies if the sum of
        the rests stays within one multiple of the divisor.
        """

        def parts(node):
            if not isinstance(node.b, tirx.IntImm) or int(node.b) <= 0:
                return None
            divisor, whole, rest = int(node.b), tirx.const(0, node.ty.dtype), node.a
            for var in variables(node.a):
                step = self._step(node.a, var)
                if step is None:
                    return None
                times = (step + divisor // 2) // divisor
                whole, rest = whole + var * times, rest - var * (times * divisor)
            bound = self.analyzer.const_int_bound(self.analyzer.simplify(rest))
            low, high = (int(each) // divisor for each in (bound.min_value, bound.max_value))
            return (whole + low, rest - low * divisor) if low == high else None

        def rewrite(node):
            found = parts(node)
            return node if found is None else found[isinstance(node, tirx.FloorMod)]

        return mapped(expr, *((kind, rewrite) for kind in (tirx.FloorDiv, tirx.FloorMod)))

    def _step(self, expr, var) -> int | None:
        """Return the constant by which an expression grows from `var` to `var` + 1; None if it is not constant."""
        grown = self.analyzer.simplify(_at(expr, var, var + 1) - expr)
        return int(grown) if isinstance(grown, tirx.IntImm) else None

    def _equal(self, first, second) -> bool:
        """Compare two expressions by value: iter_map_simplify is not always right (see `tvm_mends.guard_divisions`)."""
        vars_ = variables(first) + [v for v in variables(second) if v not in variables(first)]
        if any(v not in self.ranges for v in vars_):
            return False
        extents = {v: int(self.ranges[v].extent) for v in vars_}
        if math.prod(extents.values()) > _LARGEST_SPACE:
            return False
        points = grid(vars_, extents) if vars_ else {}
        try:
            return bool(np.all(evaluate(first, points) == evaluate(second, points)))
        except NotAnIndex:
            return False

    def body(self, node):
        """Simplify every load index, store index and condition inside an expression or statement."""
        callbacks = ((ir.Call, self._lazy_select), (ir.TensorLoad, self._load), (tirx.Select, self._select))
        return rewrite_accesses(node, callbacks, self.index)

    def _load(self, load):
        before = load.indices[:]
        if all(map(self._is_simple, before)):
            return load
        after = self.indices(before, load.source.shape)
        same = all(new.same_as(old) for new, old in zip(after, before, strict=True))
        return load if same else tirx.BufferLoad(load.source, after)

    def _select(self, select):
        if contains(select.condition, tirx.Select):
            return select  # a nested choice of numbers: slow to simplify, and no index profits
        condition = self._simplified(select.condition)
        if isinstance(condition, tirx.IntImm):
            return select.true_value if int(condition) else select.false_value
        return tirx.Select(condition, select.true_value, select.false_value)

    def _lazy_select(self, call):
        if not is_if_then_else(call):
            return call
        condition, yes, no = call.args
        condition = self._simplified(condition)
        if isinstance(condition, tirx.IntImm):
            return yes if int(condition) else no
        if tvm_ffi.structural_equal(yes, no):
            return yes
        rotated = rotation(condition, yes, no, self.ranges) if _reducing.get() else None
        return rotated if rotated is not None else tirx.if_then_else(condition, yes, no)


def with_positive_divisors(expr):
    """Make all divisors positive: TVM turns ``(3 - v) % 3`` into ``v % -3 * -1``, which other code does not expect."""
    divisions = [] if isinstance(expr, LEAVES) else collect(expr, DIVISIONS)
    if not any(isinstance(each.b, tirx.IntImm) and int(each.b) < 0 for each in divisions):
        return expr

    def divide(division):
        if not isinstance(division.b, tirx.IntImm) or int(division.b) > 0:
            return division
        divisor, negative = tirx.const(-int(division.b), division.b.ty.dtype), tirx.const(-1, division.b.ty.dtype)
        turned = type(division)(_times_minus_one(division.a), divisor)
        return turned if isinstance(division, tirx.FloorDiv) else tirx.Mul(turned, negative)

    def multiply(product):
        return _times_minus_one(product.a) if _is_minus_one(product.b) else product

    return tvm_ffi.structural_map(expr, (*((kind, divide) for kind in DIVISIONS), (tirx.Mul, multiply)))


def _is_minus_one(expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == -1


def _times_minus_one(expr):
    negated = isinstance(expr, tirx.Mul) and _is_minus_one(expr.b)
    return expr.a if negated else tirx.Mul(expr, tirx.const(-1, expr.ty.dtype))


def rotation(condition, yes, no, ranges: Mapping):
    """Turn a select between two loads of one tensor into one load with a modulo, or return None.

    A roll arrives as slice + slice + concat: ``x[v - 53] if v >= 53 else x[v + 3]`` is ``x[(v + 3) % 56]``: one load,
    no branch, and a map that composes. In general, with ``v`` in ``[0, n)``, the select on ``v >= c`` is a rotation if
    one branch continues the other past the end: ``no(v) == yes(v + n)``; then it is ``yes((v - c) % n + c)``.
    """
    if not (isinstance(yes, ir.TensorLoad) and isinstance(no, ir.TensorLoad) and yes.source.same_as(no.source)):
        return None
    split = _threshold(condition, ranges)
    if split is None:
        return None
    var, cut = split
    size = int(ranges[var].extent)
    turned = tirx.floormod(var + tirx.const(size - cut, var.ty.dtype), size)
    for base, other, part, shift, wrapped in (
        (yes, no, _span(var, 0, cut), 0, var),  # one branch holds everywhere
        (no, yes, _span(var, cut, size), 0, var),
        (yes, no, _span(var, 0, cut), size, turned + cut),
        (no, yes, _span(var, cut, size), -size, turned - (size - cut)),
    ):
        analyzer = sym.Analyzer()
        for v, rng in ranges.items():
            analyzer.bind(v, part if v.same_as(var) else rng)
        pairs = zip(base.indices, other.indices, strict=True)
        if all(analyzer.can_prove_equal(_at(first, var, var + shift), second) for first, second in pairs):
            simplifier = Simplifier({v: int(rng.extent) for v, rng in ranges.items()})
            return base.source[tuple(simplifier.index(_at(i, var, wrapped)) for i in base.indices)]
    return _interpolated(yes, no, var, ranges) if size == 2 else None


def _interpolated(yes, no, var, ranges: Mapping):
    """Return a select between two loads, on a variable with two values, as one load at indices linear in it."""
    simplifier = Simplifier({v: int(rng.extent) for v, rng in ranges.items()})
    zero, one = tirx.const(0, var.ty.dtype), tirx.const(1, var.ty.dtype)
    starts = [_at(i, var, zero) for i in no.indices]
    steps = [simplifier.index(_at(i, var, one) - s) for i, s in zip(yes.indices, starts, strict=True)]
    if not all(isinstance(step, tirx.IntImm) for step in steps):
        return None
    return yes.source[tuple(simplifier.index(s + step * var) for s, step in zip(starts, steps, strict=True))]


def _threshold(condition, ranges: Mapping) -> tuple | None:
    """``(v, c)`` if the condition is ``v >= c`` (which the simplifier writes ``v == c`` for the last element)."""
    if not isinstance(condition, tirx.LE | tirx.GE | tirx.EQ):
        return None
    bound, var = (condition.a, condition.b) if isinstance(condition, tirx.LE) else (condition.b, condition.a)
    if not isinstance(bound, tirx.IntImm) or not isinstance(var, ir.Var) or var not in ranges:
        return None
    if isinstance(condition, tirx.EQ) and int(bound) != int(ranges[var].extent) - 1:
        return None
    return var, int(bound)


def _at(expr, var, value):
    """`expr` with `var` replaced by `value`."""
    return tvm_ffi.structural_map(expr, (ir.Var, lambda v: value if v.same_as(var) else v))
