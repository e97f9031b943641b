# SPDX-License-Identifier: Apache-2.0
"""Index maps: evaluate and compare them (SmartMem 3.2.1).

A layout operator is an index map from output element to input element. Maps compose by substitution, and
`strength_reduction` makes the result cheap. This module decides whether a map is the identity, whether it stays inside
the source, and whether it visits every source element at most once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from tvm import ir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel, detect_iter_map

from .walk import collect, collect_outside

EVALUATE: dict[type, Callable] = {
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


# Most indices are one of these, and a walk would cost more than it finds.
LEAVES = (ir.Var, tirx.IntImm)
DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)
# Points; below this, enumeration takes less time than TVM's iterator analysis.
_LARGE_SPACE = 1 << 14


class NotAnIndex(Exception):
    """The expression is not integer arithmetic over the iterators; it may load data."""


def evaluate(expr, values: Mapping) -> np.ndarray:
    """Evaluate an integer expression, given an array for each variable; all arrays must broadcast together.

    Raises
    ------
    NotAnIndex
        If the expression contains anything but integer arithmetic, comparisons and selects.
    """
    kind = type(expr)  # no `isinstance`: for TVM's classes its answer "no" is slow
    if kind in EVALUATE:
        return EVALUATE[kind](evaluate(expr.a, values), evaluate(expr.b, values))
    if kind is tirx.Cast:
        return evaluate(expr.value, values)
    if kind is tirx.Not:
        return np.logical_not(evaluate(expr.a, values))
    if kind is tirx.Select:
        return np.where(*(evaluate(part, values) for part in (expr.condition, expr.true_value, expr.false_value)))
    if is_if_then_else(expr):
        return np.where(*(evaluate(part, values) for part in expr.args))
    if isinstance(expr, int | tirx.IntImm):
        return np.asarray(int(expr))
    found = values.get(expr) if isinstance(expr, ir.Var) else None
    if found is None:
        raise NotAnIndex(f"{expr} is not index arithmetic")
    return found


def is_if_then_else(expr) -> bool:
    """Whether `expr` is the lazy select ``if_then_else(condition, a, b)``."""
    return isinstance(expr, ir.Call) and getattr(expr.op, "name", "").endswith(".if_then_else")


def function_name(call: ir.Call) -> str:
    """Return the name of the called operator without its dialect (``exp``); empty if no operator is called."""
    return getattr(call.op, "name", "").rpartition(".")[2]


def variables(expr) -> list:
    """Scalar variables of an expression, each once, in order of appearance."""
    if isinstance(expr, LEAVES):
        return [expr] if isinstance(expr, ir.Var) and not tirx.is_buffer_var(expr) else []
    return [var for var in dict.fromkeys(collect(expr, ir.Var)) if not tirx.is_buffer_var(var)]


def grid(vars_: Sequence, extents: Mapping) -> dict:
    """One broadcastable ``arange`` per variable, spanning the whole iteration space."""
    axes = np.ogrid[tuple(slice(0, extents[v]) for v in vars_)]
    return dict(zip(vars_, axes, strict=True))


def division_count(expr) -> int:
    """Count the ``//`` and ``%`` evaluated for one value of an expression; of two branches, the larger count.

    The function does not recurse: a concatenation of n tensors has choices nested n deep.
    """
    parts, calls = [expr], []  # expressions, outer ones first; (number of the part, call, slice of its arguments)
    for number, part in enumerate(parts):
        for call in [] if isinstance(part, LEAVES) else collect_outside(part, ir.Call, skip=ir.Call):
            calls.append((number, call, slice(len(parts), len(parts) + len(call.args))))
            parts.extend(call.args)
    counts = [0 if isinstance(part, LEAVES) else len(_divisions_outside(part)) for part in parts]
    for number, call, arguments in reversed(calls):
        found = counts[arguments]
        counts[number] += found[0] + max(found[1:]) if is_if_then_else(call) else sum(found)
    return counts[0]


def _divisions_outside(expr) -> list:
    """Return the divisions of an expression that are outside of the arguments of calls."""
    nodes = collect_outside(expr, (*DIVISIONS, ir.Call), skip=ir.Call)
    return [node for node in nodes if not isinstance(node, ir.Call)]


def divisor_chain(nodes: Iterable, var, extent: int) -> list[int]:
    """Return 1, the constants that divide `var`, ascending, and its extent; 1 and the extent if they form no chain.

    In a chain, each number divides the next.

    Parameters
    ----------
    nodes : iterable
        Expressions or statements to search for ``//`` and ``%``.
    """
    found: set[int] = set()
    for division in (each for node in nodes for each in collect(node, DIVISIONS)):
        outer, divided = 1, division.a
        if isinstance(divided, tirx.FloorDiv) and isinstance(divided.b, tirx.IntImm) and int(divided.b) > 0:
            outer, divided = int(divided.b), divided.a  # (v // a) % b cuts at a and at a * b
        positive = isinstance(division.b, tirx.IntImm) and int(division.b) > 0
        if positive and isinstance(divided, ir.Var) and divided.same_as(var):
            found.update((outer, outer * int(division.b)))
    chain = [1, *sorted(found - {1, extent}), extent]
    return chain if all(b % a == 0 for a, b in pairwise(chain)) else [1, extent]


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
    sizes, analyzer = {hash(var): extent for var, extent in extents.items()}, None
    for index, size in zip(indices, shape, strict=True):
        if isinstance(index, ir.Var) and 0 < sizes.get(hash(index), 0) <= size:
            continue
        if analyzer is None:
            analyzer = sym.Analyzer()
            for var, extent in extents.items():
                analyzer.bind(var, ir.Range(0, tirx.IntImm(var.ty.dtype, extent)))
        bound = analyzer.const_int_bound(index)
        if bound.min_value >= 0 and bound.max_value < size:
            continue  # the analyzer's bound may be too wide, but never too narrow
        values = _tabulate([index], variables(index), extents)
        if values is None or values[0].min() < 0 or values[0].max() >= size:
            return False
    return True


def is_injective(indices: Sequence, extents: Mapping, condition=None) -> bool:
    """Whether no two points of the iteration space (those where `condition` holds) have the same image.

    The test is exact. Groups of axes that share no variable are tested one by one: over a large space TVM's iterator
    analysis may prove the group one-to-one, and all other groups are enumerated.
    """
    live = {var for var, extent in extents.items() if extent > 1}
    if condition is None and all(isinstance(index, LEAVES) for index in indices):
        return set(map(hash, live)) <= set(map(hash, indices))  # the most frequent case, without enumeration
    used: set = set()
    everything = [*indices, condition] if condition is not None else list(indices)
    for axes, vars_ in independent_groups(everything):
        vars_ = [v for v in vars_ if v in live]
        used |= set(vars_)
        group = [everything[axis] for axis in axes]
        if len(axes) == 1 and len(vars_) == 1 and group[0].same_as(vars_[0]):
            continue
        conditional = condition is not None and axes[-1] == len(indices)
        if not conditional and _separates_digits(group, vars_, extents):
            continue
        values = _tabulate(group, vars_, extents)
        if values is None:
            return False
        mask = values.pop() if conditional else np.asarray(True)
        if not _all_different(values, tuple(extents[v] for v in vars_), mask):
            return False
    return used == live


def _separates_digits(indices: Sequence, vars_: Sequence, extents: Mapping) -> bool:
    """Whether TVM's iterator analysis proves a large map to be one-to-one; False means unknown."""
    if math.prod(extents[v] for v in vars_) < _LARGE_SPACE:
        return False
    everything = dict.fromkeys(v for index in indices for v in variables(index))
    if not all(v in extents for v in everything):
        return False
    domain = {v: ir.Range(0, tirx.IntImm(v.ty.dtype, extents[v])) for v in everything}
    return bool(detect_iter_map(list(indices), domain, check_level=IterMapLevel.Bijective).indices)


def _all_different(values: list, space: tuple[int, ...], mask: np.ndarray) -> bool:
    """Whether the points of `space` where `mask` holds have different coordinates `values` (all broadcastable)."""
    mask = np.broadcast_to(mask, space)
    if not values:
        return mask.sum() == 1
    flat = np.zeros((), np.int64)
    size = 1
    for value in values:  # row-major position in the box that the image spans
        low, span = int(value.min()), int(value.max()) - int(value.min()) + 1
        flat, size = flat * span + (value - low), size * span
    points = np.broadcast_to(flat, space)[mask]
    if size > 8 * max(points.size, _LARGE_SPACE):
        return len(np.unique(points)) == points.size
    seen = np.zeros(size, bool)
    seen[points] = True
    return int(seen.sum()) == points.size


def _tabulate(indices, vars_, extents) -> list | None:
    """Return the values of `indices` over the space of `vars_`, other variables 0; None if an index loads data."""
    space = {v: np.asarray(0) for v in extents}
    space.update(grid(vars_, extents) if vars_ else {})
    try:
        return [evaluate(index, space) for index in indices]
    except NotAnIndex:
        return None


def independent_groups(indices: Sequence) -> list[tuple[list[int], list]]:
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
