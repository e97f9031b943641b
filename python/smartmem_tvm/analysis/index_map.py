# SPDX-License-Identifier: Apache-2.0
"""Index comprehension (SmartMem 3.2.1): simplify, compare and invert nothing but index expressions.

A layout operator is an index map from output element to input element. Composing maps is substitution; this module
does the strength reduction afterwards (identity, split and merge dependencies; ``i % a % b -> i % b`` when ``b``
divides ``a``) and answers the questions the rewrites ask: is the map the identity, does it stay inside the source, does
it visit every source element at most once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm_ffi
from tvm import ir, sym, tirx

_EVALUATE: dict[type, Callable] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}

# Maps are compared by value on spaces up to this size; on larger ones a doubtful simplification is not made.
_LARGEST_SPACE = 1 << 22


class NotAnIndex(Exception):
    """The expression is not integer arithmetic over the iterators (it loads data, say)."""


def evaluate(expr, values: Mapping) -> np.ndarray:
    """Value of an integer expression where `values` gives an array (all broadcastable) for each variable.

    Raises
    ------
    NotAnIndex
        If the expression contains anything but integer arithmetic, comparisons and selects.
    """
    if isinstance(expr, int | tirx.IntImm):
        return np.asarray(int(expr))
    if isinstance(expr, ir.Var) and expr in values:
        return values[expr]
    if isinstance(expr, tirx.Cast):
        return evaluate(expr.value, values)
    if isinstance(expr, tirx.Not):
        return np.logical_not(evaluate(expr.a, values))
    if isinstance(expr, tirx.Select):
        parts = (expr.condition, expr.true_value, expr.false_value)
        return np.where(*(evaluate(part, values) for part in parts))
    if is_if_then_else(expr):
        return np.where(*(evaluate(part, values) for part in expr.args))
    operation = _EVALUATE.get(type(expr))
    if operation is None:
        raise NotAnIndex(f"{expr} is not index arithmetic")
    return operation(evaluate(expr.a, values), evaluate(expr.b, values))


def is_if_then_else(expr) -> bool:
    """Whether `expr` is the lazy select ``if_then_else(condition, a, b)``."""
    return isinstance(expr, ir.Call) and getattr(expr.op, "name", "").endswith(".if_then_else")


def variables(expr) -> list:
    """Scalar variables of an expression, each once, in order of appearance."""
    found: list = []
    tvm_ffi.structural_walk(
        expr,
        (ir.Var, lambda v: None if v in found or tirx.is_buffer_var(v) else found.append(v)),
    )
    return found


def grid(vars_: Sequence, extents: Mapping) -> dict:
    """One broadcastable ``arange`` per variable, spanning the whole iteration space."""
    axes = np.ogrid[tuple(slice(0, extents[v]) for v in vars_)]
    return dict(zip(vars_, axes, strict=True))


class Simplifier:
    """Strength reduction of index expressions under known iterator ranges.

    Parameters
    ----------
    extents : mapping of tirx.Var to int
        Every iterator runs over ``[0, extent)``.
    """

    def __init__(self, extents: Mapping):
        self.ranges = {var: ir.Range(0, extent) for var, extent in extents.items()}
        self.analyzer = sym.Analyzer()
        for var, rng in self.ranges.items():
            self.analyzer.bind(var, rng)

    def index(self, expr):
        """The cheapest equal form of one index expression, counted in ``//`` and ``%``."""
        plain = self.analyzer.simplify(expr)
        if division_count(plain) == 0:
            return plain
        candidates = [self._modulo_of_modulo(plain), sym.iter_map_simplify([plain], self.ranges)[0]]
        return self._cheaper(plain, [self.analyzer.simplify(each) for each in candidates])

    def indices(self, indices: Sequence, shape: Sequence) -> list:
        """The cheapest equal form of an access to a tensor of `shape`.

        Besides each index on its own this tries the position in memory: a chain of reshapes and its inverse is the
        identity as a whole, though no index by itself shows it.
        """
        simple = [self.index(i) for i in indices]
        divisions = sum(map(division_count, simple))
        used = [v for v in self.ranges if any(v in variables(i) for i in simple)]
        extents = [int(self.ranges[v].extent) for v in used]
        sizes = [int(size) for size in shape] if all(isinstance(size, tirx.IntImm | int) for size in shape) else []
        if divisions == 0 or math.prod(extents) != math.prod(sizes):
            return simple
        straight = flat_index(used, extents)
        split = [self.analyzer.simplify(part) for part in unflatten(straight, sizes)]
        if sum(map(division_count, split)) >= divisions or not self._equal(straight, flat_index(simple, sizes)):
            return simple
        return split

    def _cheaper(self, plain, candidates):
        for other in candidates:
            if division_count(other) < division_count(plain) and self._equal(plain, other):
                plain = other
        return plain

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

    def _equal(self, first, second) -> bool:
        """Compare by value, because iter_map_simplify is not always right (see `transform.lower_rotations`)."""
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
        node = tvm_ffi.structural_map(
            node, ((ir.Call, self._lazy_select), (ir.TensorLoad, self._load), (tirx.Select, self._select))
        )
        return tvm_ffi.structural_map(
            node,
            (
                tirx.BufferStore,
                lambda s: tirx.BufferStore(s.buffer, s.value, [self.index(i) for i in s.indices]),
            ),
        )

    def _load(self, load):
        return load.source[tuple(self.indices(load.indices, load.source.shape))]

    def _select(self, select):
        condition = self.analyzer.simplify(select.condition)
        if isinstance(condition, tirx.IntImm):
            return select.true_value if int(condition) else select.false_value
        return tirx.Select(condition, select.true_value, select.false_value)

    def _lazy_select(self, call):
        if not is_if_then_else(call):
            return call
        condition, yes, no = call.args
        condition = self.analyzer.simplify(condition)
        if isinstance(condition, tirx.IntImm):
            return yes if int(condition) else no
        if tvm_ffi.structural_equal(yes, no):
            return yes
        rotated = rotation(condition, yes, no, self.ranges)
        return rotated if rotated is not None else tirx.if_then_else(condition, yes, no)


def division_count(expr) -> int:
    """Number of ``//`` and ``%`` in an expression."""
    count = 0

    def bump(_):
        nonlocal count
        count += 1

    tvm_ffi.structural_walk(expr, ((tirx.FloorDiv, tirx.FloorMod), bump))
    return count


def rotation(condition, yes, no, ranges: Mapping):
    """Turn a select between two loads of one tensor into one load with a modulo, or return None.

    A roll arrives as slice + slice + concat: ``x[v - 53] if v >= 53 else x[v + 3]`` is ``x[(v + 3) % 56]``: one load, no
    branch, and a map that composes. In general, with ``v`` in ``[0, n)``, the select on ``v >= c`` is a rotation if one
    branch continues the other past the end: ``no(v) == yes(v + n)``; then it is ``yes((v - c) % n + c)``.
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
        (yes, no, ir.Range(0, cut), 0, var),  # one branch is right everywhere
        (no, yes, ir.Range(cut, size), 0, var),
        (yes, no, ir.Range(0, cut), size, turned + cut),
        (no, yes, ir.Range(cut, size), -size, turned - (size - cut)),
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
    """A select between two loads on a variable with two values, as one load at indices linear in the variable."""
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


def is_identity(indices: Sequence, vars_: Sequence, extents: Mapping) -> bool:
    """Whether ``indices == vars_``, axis by axis; on an axis of extent 1 the index may be the constant 0."""
    return len(indices) == len(vars_) and all(
        index.same_as(var) or (extents[var] == 1 and isinstance(index, tirx.IntImm))
        for index, var in zip(indices, vars_, strict=True)
    )


def visits_once(indices: Sequence, extents: Mapping, shape: Sequence[int]) -> bool:
    """Whether the map stays inside `shape` and no two points of the iteration space read the same element."""
    return stays_inside(indices, extents, shape) and is_injective(indices, extents)


def stays_inside(indices: Sequence, extents: Mapping, shape: Sequence[int]) -> bool:
    """Whether every index lies in ``[0, extent)`` of its axis of `shape` over the whole iteration space."""
    for index, size in zip(indices, shape, strict=True):
        values = _tabulate([index], variables(index), extents)
        if values is None or values[0].min() < 0 or values[0].max() >= size:
            return False
    return True


def is_injective(indices: Sequence, extents: Mapping, condition=None) -> bool:
    """Whether no two points of the iteration space (those where `condition` holds) have the same image.

    The test is exact: groups of axes that share no variable are enumerated apart, each on its own small space, so
    that a 3-million-point map costs a few thousand evaluations.
    """
    live = {var for var, extent in extents.items() if extent > 1}
    used: set = set()
    everything = [*indices, condition] if condition is not None else list(indices)
    for axes, vars_ in _independent_groups(everything):
        vars_ = [v for v in vars_ if v in live]
        used |= set(vars_)
        if len(axes) == 1 and len(vars_) == 1 and everything[axes[0]].same_as(vars_[0]):
            continue
        values = _tabulate([everything[axis] for axis in axes], vars_, extents)
        if values is None:
            return False
        space = tuple(extents[v] for v in vars_)
        mask = np.ones(space, bool)
        if condition is not None and axes[-1] == len(indices):
            mask = np.broadcast_to(values.pop(), space)
        images = 1
        if values:
            points = np.stack([np.broadcast_to(v, space)[mask] for v in values], axis=-1)
            images = len(np.unique(points, axis=0))
        if images != mask.sum():
            return False
    return used == live


def _tabulate(indices, vars_, extents) -> list | None:
    """Values of `indices` over the space of `vars_` (every other variable 0), or None where they load data."""
    space = {v: np.asarray(0) for v in extents}
    space.update(grid(vars_, extents) if vars_ else {})
    try:
        return [evaluate(index, space) for index in indices]
    except NotAnIndex:
        return None


def _independent_groups(indices: Sequence) -> list[tuple[list[int], list]]:
    """Partition the axes of a map into groups that share no variable."""
    groups: list[tuple[list[int], list]] = []
    for axis, index in enumerate(indices):
        axes, vars_ = [axis], variables(index)
        for other in [g for g in groups if any(v in g[1] for v in vars_)]:
            groups.remove(other)
            axes, vars_ = sorted(other[0] + axes), other[1] + [v for v in vars_ if v not in other[1]]
        groups.append((axes, vars_))
    return groups


def unflatten(flat, shape: Sequence[int]) -> list:
    """Indices of the element at row-major position `flat` of a tensor of `shape`."""
    indices = []
    for extent in reversed(shape):
        indices.append(tirx.floormod(flat, extent))
        flat = tirx.floordiv(flat, extent)
    return indices[::-1]


def flat_index(indices: Sequence, shape: Sequence[int]):
    """Row-major position of `indices` in a tensor of `shape`."""
    flat = tirx.const(0, "int64")
    for index, extent in zip(indices, shape, strict=True):
        flat = flat * extent + index
    return flat
