# SPDX-License-Identifier: Apache-2.0
"""Delta debugging (Zeller and Hildebrandt, TSE 2002) by removing ever shorter runs of items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def smallest(items: Sequence[Item], holds: Callable[[list[Item]], bool]) -> list[Item]:
    """Return a part of `items`, in order, for which `holds` is true and no longer is without any one of them.

    Parameters
    ----------
    holds : callable
        True for `items` themselves, for which it is not called; called only for parts that are not empty.
    """
    kept, length = list(items), max(1, len(items) // 2)
    while len(kept) > 1:
        before, start = len(kept), max(0, len(kept) - length)
        while True:  # from the end: earlier items do not depend on later ones
            rest = kept[:start] + kept[start + length :]
            if rest and holds(rest):
                kept = rest
            if start == 0:
                break
            start = max(0, min(start, len(kept)) - length)
        if length == 1 and len(kept) == before:
            break
        length = max(1, min(length, len(kept)) // 2)
    return kept
