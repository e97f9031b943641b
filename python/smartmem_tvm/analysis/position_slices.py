# SPDX-License-Identifier: Apache-2.0
"""Slices along the positions of an open length that are known by their bounds: the last ones, and all but some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir

from ..ir.mask_positions import Extent
from .items import Mixed
from .position_loops import Shares
from .position_windows import Window


@dataclass(frozen=True)
class Sliced:
    """One axis with positions along which a slice goes on one by one.

    Attributes
    ----------
    share : Share
        Where the positions lie.
    sizes, counts, first : list of int
        At both lengths the elements of the operand and of the result, and the first one that it reads.
    """

    share: object
    sizes: list[int]
    counts: list[int]
    first: list[int]


def sliced(values: Sequence[ir.Call], shares: Shares, shapes: Sequence, results: Sequence) -> list[Sliced]:
    """Return the axes with positions of a slice.

    Parameters
    ----------
    values : sequence of ir.Call
        The slice at both lengths.
    shares : Shares
        Of its operand.
    shapes, results : sequence
        The shape of the operand, and of the result, at both lengths.
    """
    axes, starts, steps = ([_bounds(value, place) for value in values] for place in (1, 2, 4))
    if None in (*axes, *starts, *steps) or axes[0] != axes[1] or steps[0] != steps[1]:
        return []
    known, found = {each.axis: each for each in shares}, []
    for number, axis in enumerate(each % len(shapes[0]) for each in axes[0]):
        if axis in known and steps[0][number] == 1:
            sizes, counts = [each[axis] for each in shapes], [each[axis] for each in results]
            first = [each[number] + size if each[number] < 0 else each[number] for each, size in zip(starts, sizes)]
            found.append(Sliced(known[axis], sizes, counts, first))
    return found


def last_of(slices: Sequence[Sliced], least: int) -> dict[int, tuple[Extent, int]]:
    """Return axis -> its extent, and the number of elements, of slices that read the last ones.

    Parameters
    ----------
    least : int
        The shortest length.

    Raises
    ------
    Mixed
        If the shortest length has fewer positions.
    """
    found = {}
    for each in slices:
        ends = [size - first for size, first in zip(each.sizes, each.first, strict=True)]
        if each.counts[0] == each.counts[1] and ends == each.counts:
            if each.share.extent.of(least) < each.counts[0]:
                raise Mixed(f"reads the last {each.counts[0]} positions, which the least length has not")
            found[each.share.axis] = each.share.extent, each.counts[0]
    return found


def cut_of(slices: Sequence[Sliced]) -> dict[int, Window]:
    """Return axis -> a window of one number, of slices that leave out the same number of positions at both lengths."""
    found = {}
    for each in slices:
        left = [size - count for size, count in zip(each.sizes, each.counts, strict=True)]
        if each.first[0] == each.first[1] and left[0] == left[1] > 0 and each.share.each == 1:
            found[each.share.axis] = Window(1, 1, 1, -each.first[0], each.first[0] - left[0])
    return found


def _bounds(call: ir.Call, place: int) -> list[int] | None:
    """Return the numbers of an argument of a slice; None if they are no numbers, ones if it is left out."""
    if len(call.args) <= place:
        return [1] * len(call.args[1].fields)
    found = [getattr(each, "value", None) for each in getattr(call.args[place], "fields", [None])]
    return found if all(isinstance(each, int) for each in found) else None
