# SPDX-License-Identifier: Apache-2.0
"""Count the distinct places that index expressions reach over an iteration space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, tirx

from ..ir.index_map import NotAnIndex, evaluate, grid, independent_groups, variables

_MOST_POINTS = 1 << 22  # points of one group of dependent iterators; a larger group is not enumerated
_MOST_MARKS = 1 << 26


@dataclass(frozen=True, eq=False)
class Points:
    """Tuples of indices over the iterators of a stage.

    Attributes
    ----------
    dims : tuple of (expression, int or None)
        Each index, and the size that it must be below; None if any value counts.
    conditions : tuple
        Conditions on the iterators: only points where all of them hold count.
    exact : bool
        Whether the indices alone determine the place; False if an index contains an element of a tensor.
    """

    dims: tuple = ()
    conditions: tuple = ()
    exact: bool = True

    def __add__(self, other: Points) -> Points:
        return Points(self.dims + other.dims, self.conditions + other.conditions, self.exact and other.exact)


def count(points: Points, extents: Mapping) -> int:
    """Count the distinct tuples with every index inside its size.

    Indices that share no iterator are counted separately. A group of more than four million points is not enumerated:
    each of its points counts, or each place within the sizes if these are fewer.

    Parameters
    ----------
    extents : mapping
        Extent of each iterator.
    """
    everything = [index for index, _ in points.dims] + list(points.conditions)
    sizes = [size for _, size in points.dims] + [None] * len(points.conditions)
    found = 1
    for axes, vars_ in independent_groups(everything):
        values = [axis for axis in axes if axis < len(points.dims)]
        group = [(everything[axis], sizes[axis]) for axis in values]
        conditions = [everything[axis] for axis in axes[len(values) :]]
        found *= _group(group, conditions, vars_, extents)
    return found


def _group(dims: Sequence, conditions: Sequence, vars_: Sequence, extents: Mapping) -> int:
    if not conditions and all(isinstance(index, ir.Var) for index, _ in dims):
        return math.prod(min([extents[v], *(s for i, s in dims if s is not None and i.same_as(v))]) for v in vars_)
    space = math.prod(extents[v] for v in vars_)
    if space > _MOST_POINTS:
        known = [size for _, size in dims if size is not None]
        return min(space, math.prod(known)) if known and len(known) == len(dims) else space
    values, inside = _table(dims, conditions, vars_, extents)
    if {index for index, _ in dims if isinstance(index, ir.Var)} >= set(vars_):
        return int(np.count_nonzero(inside))  # all points have distinct tuples
    if not values:
        return int(inside.any())
    flat, size = np.zeros((), np.int64), 1
    for value in values:  # row-major position in the box that the tuples span
        low, span = int(value.min()), int(value.max()) - int(value.min()) + 1
        flat, size = flat * span + (value - low), size * span
    places = np.broadcast_to(flat, inside.shape)[inside]
    if size > 8 * max(places.size, 1 << 14):
        places.sort()  # numpy's own `unique` takes ten times as long
        return min(places.size, 1) + int(np.count_nonzero(np.diff(places)))
    seen = np.zeros(size, bool)
    seen[places] = True
    return int(np.count_nonzero(seen))


def _table(dims: Sequence, conditions: Sequence, vars_: Sequence, extents: Mapping) -> tuple[list, np.ndarray]:
    """Return each index over the space of the iterators, and where all are inside and all conditions hold."""
    space = grid(vars_, extents) if vars_ else {}
    inside = np.ones(tuple(extents[v] for v in vars_), bool)
    for condition in conditions:
        inside &= np.asarray(evaluate(condition, space), bool)
    values = [np.asarray(evaluate(index, space)) for index, _ in dims]
    for value, (_, size) in zip(values, dims, strict=True):
        if size is not None:
            inside &= (value >= 0) & (value < size)
    return values, inside


def count_together(several: Sequence[tuple[Points, Mapping]], shape: Sequence[int]) -> int:
    """Count the distinct elements of one tensor that several index maps reach, each over its own iterators.

    Maps over more than four million points, and maps with elements of tensors in their indices, are not enumerated:
    they count as disjoint from the others, up to the size of the tensor.
    """
    whole = math.prod(shape)
    counts = [min(count(*each), whole) for each in several]
    if len(several) == 1 or max(counts) == whole:
        return max(counts)
    marks = np.zeros(whole, bool) if whole <= _MOST_MARKS else None
    if marks is None or not all(_mark(marks, points, extents, shape) for points, extents in several):
        return min(sum(counts), whole)
    return int(np.count_nonzero(marks))


def _mark(marks: np.ndarray, points: Points, extents: Mapping, shape: Sequence[int]) -> bool:
    """Mark the elements that a map reaches; return False if the map cannot be enumerated."""
    everything = [index for index, _ in points.dims] + list(points.conditions)
    vars_ = list(dict.fromkeys(v for each in everything for v in variables(each)))
    if not points.exact or math.prod(extents[v] for v in vars_) > _MOST_POINTS:
        return False
    values, inside = _table(points.dims, points.conditions, vars_, extents)
    flat = np.zeros((), np.int64)
    for value, size in zip(values, shape, strict=True):
        flat = flat * size + value
    marks[np.broadcast_to(flat, inside.shape)[inside]] = True
    return True


def is_index(expr) -> bool:
    """Whether an expression is arithmetic on iterators only, which can be enumerated."""
    try:
        evaluate(expr, {var: np.zeros((), np.int64) for var in variables(expr)})
    except NotAnIndex:
        return False
    return True


def conjuncts(condition) -> tuple:
    """Return the conjuncts of a condition."""
    if isinstance(condition, tirx.And):
        return (*conjuncts(condition.a), *conjuncts(condition.b))
    return (condition,)
