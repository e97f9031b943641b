# SPDX-License-Identifier: Apache-2.0
"""Fewer cases than a full grid of attributes: each pair of values once, or each value once.

A test whose grid comes from several `parametrize` gets `@pytest.mark.pairwise` or `@pytest.mark.each_value`, and
`pytest --full-grids` runs all of it (`make test-all`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, product

import pytest

MARKS = {"pairwise": 2, "each_value": 1}


def seeds(few: int, more: int, most: int) -> list:
    """Return the seeds of random draws for `parametrize`: `few` for every change, up to `more` in the device tier.

    Those from `more` to `most` are slow.
    """
    tiers = [(), pytest.mark.device, pytest.mark.slow]
    return [pytest.param(seed, marks=tiers[(seed >= few) + (seed >= more)]) for seed in range(most)]


def pairs(*axes: Iterable) -> list[tuple]:
    """Return cases in which each value of each axis meets each value of each other axis at least once.

    A fault that needs one value, or two values of different axes, shows in one of them; three values that have to meet
    are drawn at random elsewhere. Greedy, and the same list in every run. With two axes it is the full grid.

    Parameters
    ----------
    axes : iterable
        The values of each attribute. Equal values within one axis count as different.
    """
    values = [list(axis) for axis in axes]
    grid = list(product(*(range(len(axis)) for axis in values)))
    return [tuple(axis[i] for axis, i in zip(values, case, strict=True)) for case in cover(grid, 2)]


def singles(*axes: Iterable) -> list[tuple]:
    """Return as many cases as the longest axis has values, in which each value of each axis occurs at least once.

    For grids whose axes do not meet in one decision, or where another test has the pairs. A shorter axis begins with
    another value each time it is gone through, so that axes of 2 and 4 values do not always meet in the same way.
    """
    values = [list(axis) for axis in axes]
    return [tuple(axis[(i + i // len(axis)) % len(axis)] for axis in values) for i in range(max(map(len, values)))]


def cover(cases: Sequence[tuple], strength: int) -> list[tuple]:
    """Return some of the cases, which have each combination of `strength` values that any of the cases has.

    Takes the case with most of the missing combinations until there are none; of equal ones the first, and for single
    values that whose values were taken least, so that short axes are mixed.
    """
    axes = len(cases[0]) if cases else 0
    places = list(combinations(range(axes), min(strength, axes)))
    left = {case: {(place, tuple(case[axis] for axis in place)) for place in places} for case in cases}
    missing, chosen, taken = set().union(*left.values()), [], Counter()

    def gain(case: tuple) -> tuple[int, int]:
        often = sum(taken[each] for each in enumerate(case)) if strength == 1 else 0
        return len(left[case] & missing), -often

    while missing:
        best = max(left, key=gain)
        missing -= left.pop(best)
        taken.update(enumerate(best))
        chosen.append(best)
    return chosen


def left_out(items: Iterable) -> set[str]:
    """Return the ids of pytest's items that a mark of their grid leaves out."""
    grids: dict = defaultdict(dict)
    for item in items:
        strength = max((MARKS[mark.name] for mark in item.iter_markers() if mark.name in MARKS), default=0)
        if strength:
            case, fixtures = _place(item)
            tier = tuple(sorted(mark.name for mark in item.iter_markers() if mark.name in ("device", "slow", "large")))
            grids[item.nodeid.partition("[")[0], fixtures, tier, strength][case] = item.nodeid
    kept = {grid[case] for key, grid in grids.items() for case in cover(list(grid), key[-1])}
    return {each for grid in grids.values() for each in grid.values()} - kept


def _place(item) -> tuple[tuple, tuple]:
    """Return an item's place in its grid, a value's identity for each `parametrize`, and those of its fixtures.

    The same values are the same objects in all cases of a grid, and they need not be hashable.
    """
    values = {name: id(value) for name, value in item.callspec.params.items()}
    case = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].replace(" ", "").split(",") if isinstance(mark.args[0], str) else mark.args[0]
        case.append(tuple(values.pop(name) for name in names))
    return tuple(case), tuple(sorted(values.items()))
