# SPDX-License-Identifier: Apache-2.0
"""Find the accesses that a thread of a GPU can make as one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import ir, tirx

from ...ir.index_map import is_if_then_else
from ...ir.kernel import substitute
from ...ir.walk import collect, loads
from ..core.expressions import Walk, has_select, replace_loads, uses
from ..core.nest import fresh, index


def vector_run(access: Callable, extent: int, outer: Mapping, most: int, condition: Callable = lambda at: None) -> int:
    """Return the longest vector along a fused index that is aligned in every buffer accessed there, in elements.

    Parameters
    ----------
    access : callable
        Fused index -> list of (buffer, indices), or None if the computation there cannot be vectorised.
    outer : mapping of tirx.Var to int
        Extents of the other variables in the accesses.
    most : int
        Longest vector tried; then its halves.
    condition : callable, optional
        Fused index -> the condition of the read, which must hold for a whole vector or for none of it; or None.
    """
    return longest_run(extent, most, lambda run: _is_vector(access, condition, extent // run, run, outer))


def longest_run(extent: int, most: int, fits: Callable[[int], bool]) -> int:
    """Return the longest of `most` and its halves that divides an extent and fits; 1 if none does."""
    run = most
    while run > 1:
        if extent % run == 0 and fits(run):
            return run
        run //= 2
    return 1


def _is_vector(access: Callable, condition: Callable, vectors: int, run: int, outer: Mapping) -> bool:
    number, within = fresh("number"), fresh("within")
    at = number * index(run) + within
    places, under = access(at), condition(at)
    if places is None:
        return False
    walk = Walk({**outer, number: vectors, within: run})
    if under is not None and uses(walk.analyzer.simplify(under), [within]):
        return False
    return are_vectors(walk, places, within, run)


def are_vectors(walk: Walk, places: list, within, run: int) -> bool:
    """Whether each access is an aligned vector of memory, or one element, as `within` runs over ``[0, run)``."""
    strides = [walk.stride(*place, within) for place in places]
    along = [place for place, stride in zip(places, strides, strict=True) if stride == 1]
    numbers = all(str(buffer.dtype) != "bool" for buffer, _ in along)  # memory has no vectors of booleans
    return set(strides) <= {0, 1} and numbers and all(_is_aligned(walk, place, within, run) for place in along)


def _is_aligned(walk: Walk, place: tuple, within, run: int) -> bool:
    start = walk.analyzer.simplify(substitute(walk.offset(*place), {within: index(0)}))
    multiple = walk.analyzer.modular_set(start)
    return multiple.coeff % run == 0 and multiple.base % run == 0


def guarded(value) -> tuple:
    """Split a padded value into (condition, value); another gives (None, value).

    Where the condition fails the value is zero, or an integer as the zero point is (`filling`).
    """
    if is_if_then_else(value):
        other = value.args[2]
        if isinstance(other, tirx.IntImm) or (isinstance(other, tirx.FloatImm) and other.value == 0):
            return value.args[0], value.args[1]
    return None, value


def filling(value) -> int:
    """Return the integer that a padded value is where its condition fails; 0 for any other value."""
    padded = is_if_then_else(value) and isinstance(value.args[2], tirx.IntImm)
    return int(value.args[2]) if padded else 0


def computed_types(*values) -> set[str]:
    """Return the floating-point types that values read and compute, without those in indices of loads."""
    outside = [replace_loads(value, lambda load: tirx.Var("read", load.ty.dtype)) for value in values]
    nodes = [node for value in outside for node in collect(value, (ir.Var, tirx.Cast, ir.Call, tirx.FloatImm))]
    return {str(node.ty.dtype) for node in nodes if "float" in str(node.ty.dtype)}


def places_of(value) -> list | None:
    """Return (buffer, indices) of every load in a value, or None if the SIMD lanes of a vector may diverge.

    A condition inside an index (a roll) is allowed: the alignment check on the indices decides.
    """
    outside = replace_loads(value, lambda load: tirx.const(0, load.ty.dtype))
    return None if has_select(outside) else [(load.source, tuple(load.indices)) for load in loads(value)]
