# SPDX-License-Identifier: Apache-2.0
"""Fewer cases than a full grid of attributes: each pair of values once, or each value once."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product


def pairs(*axes: Iterable) -> list[tuple]:
    """Return cases in which each value of each axis meets each value of each other axis at least once.

    A fault that needs one value, or two values of different axes, shows in one of them; three values that have to meet
    are drawn at random elsewhere. Greedy, and the same list in every run. With two axes it is the full grid.

    Parameters
    ----------
    axes : iterable
        The values of each attribute. Equal values within one axis count as different.
    """
    return _cover([list(axis) for axis in axes], 2)


def singles(*axes: Iterable) -> list[tuple]:
    """Return as many cases as the longest axis has values, in which each value of each axis occurs at least once.

    For grids whose axes do not meet in one decision, or where another test has the pairs. A shorter axis begins with
    another value each time it is gone through, so that axes of 2 and 4 values do not always meet in the same way.
    """
    values = [list(axis) for axis in axes]
    return [tuple(axis[(i + i // len(axis)) % len(axis)] for axis in values) for i in range(max(map(len, values)))]


def _cover(axes: Sequence[list], strength: int) -> list[tuple]:
    """Take the case of the grid that has most of the missing combinations, until there are none."""
    places = list(combinations(range(len(axes)), min(strength, len(axes))))

    def parts(case: tuple[int, ...]) -> set:
        return {(place, tuple(case[axis] for axis in place)) for place in places}

    left = {case: parts(case) for case in product(*(range(len(axis)) for axis in axes))}
    missing, chosen = set().union(*left.values()) if left else set(), []
    while missing:
        best = max(left, key=lambda case: len(left[case] & missing))
        missing -= left.pop(best)
        chosen.append(tuple(axis[i] for axis, i in zip(axes, best, strict=True)))
    return chosen
