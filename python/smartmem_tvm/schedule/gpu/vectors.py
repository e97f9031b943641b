# SPDX-License-Identifier: Apache-2.0
"""What a thread of a GPU can read or write as one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import ir, tirx

from ...ir.index_map import is_if_then_else
from ...ir.kernel import substitute
from ...ir.walk import collect, loads
from ..core.expressions import Walk, has_select, replace_loads, uses
from ..core.nest import fresh, index


def vector_run(access: Callable, extent: int, outer: Mapping, most: int, condition: Callable = lambda at: None) -> int:
    """Elements along a fused index that lie in memory as aligned vectors, in whatever is read or written there.

    Parameters
    ----------
    access : callable
        Fused index -> list of (buffer, indices), or None if what is done there cannot be done on vectors.
    outer : mapping of tirx.Var to int
        Extents of the other variables in the accesses.
    most : int
        Longest run of interest; runs are `most` halved some times.
    condition : callable, optional
        Fused index -> what all of a vector is read under, or None.
    """
    return longest_run(extent, most, lambda run: _is_vector(access, condition, extent // run, run, outer))


def longest_run(extent: int, most: int, fits: Callable[[int], bool]) -> int:
    """The longest of `most` and its halves that divides an extent and fits; 1 if none does."""
    run = most
    while run > 1:
        if extent % run == 0 and fits(run):
            return run
        run //= 2
    return 1


def _is_vector(access: Callable, condition: Callable, groups: int, run: int, outer: Mapping) -> bool:
    group, within = fresh("group"), fresh("within")
    at = group * index(run) + within
    places, under = access(at), condition(at)
    if places is None:
        return False
    walk = Walk({**outer, group: groups, within: run})
    if under is not None and uses(walk.analyzer.simplify(under), [within]):
        return False
    return are_vectors(walk, places, within, run)


def are_vectors(walk: Walk, places: list, within, run: int) -> bool:
    """Whether places are aligned vectors of memory, or one element, as `within` runs over ``[0, run)``."""
    strides = [walk.stride(*place, within) for place in places]
    along = [place for place, stride in zip(places, strides, strict=True) if stride == 1]
    numbers = all(str(buffer.dtype) != "bool" for buffer, _ in along)  # of booleans there are no vectors in memory
    return set(strides) <= {0, 1} and numbers and all(_is_aligned(walk, place, within, run) for place in along)


def _is_aligned(walk: Walk, place: tuple, within, run: int) -> bool:
    start = walk.analyzer.simplify(substitute(walk.offset(*place), {within: index(0)}))
    multiple = walk.analyzer.modular_set(start)
    return multiple.coeff % run == 0 and multiple.base % run == 0


def guarded(value) -> tuple:
    """(condition, value where it holds) of a value that is zero elsewhere, as padding is; (None, value) of another."""
    if is_if_then_else(value) and isinstance(value.args[2], tirx.FloatImm) and value.args[2].value == 0:
        return value.args[0], value.args[1]
    return None, value


def computed_types(*values) -> set[str]:
    """The types of what is read and computed in values, booleans and indices of loads left out."""
    outside = [replace_loads(value, lambda load: tirx.Var("read", load.ty.dtype)) for value in values]
    nodes = [node for value in outside for node in collect(value, (ir.Var, tirx.Cast, ir.Call, tirx.FloatImm))]
    return {str(node.ty.dtype) for node in nodes if "float" in str(node.ty.dtype)}


def places_of(value) -> list | None:
    """(buffer, indices) of every load in a value, or None if its lanes may take different ways.

    A condition inside of an index (a roll) is no matter here: it decides where a vector lies, or there is no vector.
    """
    outside = replace_loads(value, lambda load: tirx.const(0, load.ty.dtype))
    return None if has_select(outside) else [(load.source, tuple(load.indices)) for load in loads(value)]
