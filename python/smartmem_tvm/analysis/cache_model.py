# SPDX-License-Identifier: Apache-2.0
"""A cache with least-recently-used replacement, for millions of accesses at once."""

from __future__ import annotations

import numpy as np


def misses(lines: np.ndarray, size: int, ways: int, copies: np.ndarray | None = None) -> np.ndarray:
    """Return which accesses miss, starting from an empty cache.

    Parameters
    ----------
    lines : (n,) array of int
        The cache line of each access, in time order.
    size : int
        Lines that the cache holds, a multiple of `ways`.
    ways : int
        Lines of one set. The set of a line is a hash of its number, as in GPUs: strides do not pile up in one set.
    copies : (n,) array of int, optional
        For several caches of this kind, the number of the cache of each access.

    Returns
    -------
    (n,) array of bool
    """
    missed = np.zeros(len(lines), bool)
    if not len(lines):
        return missed
    sets = size // ways
    where = _hash(lines, sets) + (0 if copies is None else copies.astype(np.int64) * sets)
    order = np.argsort(where, kind="stable")
    where, tags = where[order], lines[order]
    # A repeated access to the latest line of its set hits. Most accesses are of this kind, and need no simulation.
    repeated = np.zeros(len(lines), bool)
    repeated[1:] = (where[1:] == where[:-1]) & (tags[1:] == tags[:-1])
    order, where, tags = order[~repeated], where[~repeated], tags[~repeated]
    missed[order] = _by_sets(where, tags, ways)
    return missed


def _hash(lines: np.ndarray, sets: int) -> np.ndarray:
    return (lines ^ (lines // sets) ^ (lines // (sets * sets))) % sets


def _by_sets(where: np.ndarray, tags: np.ndarray, ways: int) -> np.ndarray:
    """Return the misses of accesses sorted by set, none to the same line as its predecessor, computed way by way.

    The lines of a set form a list, the most recently used first. An access moves its line to the front, and the lines
    that were before it move down by one place. So the line at a place is the one that was a place further up, unless
    the previous access hit further up; then the line stays.
    """
    starts = np.r_[True, where[1:] != where[:-1]]
    numbers = np.arange(len(where), dtype=np.int32)
    last = np.where(starts, -1, numbers - 1)  # number of the latest access to the line at a place, -1 for none
    hit = np.zeros(len(where), bool)
    for _ in range(ways):
        hit |= (tags[last] == tags) & (last >= 0)
        moved = np.r_[-1, last[:-1]]
        moved[starts] = -1
        pushed = np.r_[True, ~hit[:-1]] | starts
        last = moved[np.maximum.accumulate(np.where(pushed, numbers, 0))]
        if last.max() < 0:
            break
    return ~hit
