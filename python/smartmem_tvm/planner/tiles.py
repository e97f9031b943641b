# SPDX-License-Identifier: Apache-2.0
"""The tiles that compute a number of items in the least time."""

from __future__ import annotations

from collections.abc import Mapping


def cover(count: int, costs: Mapping[int, float], exact: bool = False) -> tuple[int, ...] | None:
    """Return the tiles that take the least time for a number of items, larger ones first.

    Parameters
    ----------
    count : int
        The number of items.
    costs : mapping
        Items of each tile -> the time that it takes.
    exact : bool
        Whether the tiles have as many items together, and not more.

    Returns
    -------
    tuple of int or None
        None if no tiles have so many items together.
    """
    best: list[tuple[float, tuple[int, ...]] | None] = [(0, ())]
    for left in range(1, count + 1):
        known = [(items, cost) for items, cost in costs.items() if items <= left or not exact]
        ways = [(best[max(0, left - items)], items, cost) for items, cost in known]
        found = [(rest[0] + cost, (*rest[1], items)) for rest, items, cost in ways if rest is not None]
        best.append(min(found, default=None))
    return best[count] and tuple(sorted(best[count][1], reverse=True))
