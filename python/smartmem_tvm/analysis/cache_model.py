# SPDX-License-Identifier: Apache-2.0
"""A cache with least-recently-used replacement, for millions of accesses at once."""

from __future__ import annotations

import numpy as np


def misses(lines: np.ndarray, size: int, ways: int, copies: np.ndarray | None = None) -> np.ndarray:
    """Which accesses miss, from an empty cache.

    Parameters
    ----------
    lines : (n,) array of int
        The line that each access goes to, in the order of time.
    size : int
        Lines that the cache holds, a multiple of `ways`.
    ways : int
        Lines of one set. The set of a line is a hash of its number, as in GPUs: strides do not pile up in one set.
    copies : (n,) array of int, optional
        Which of several caches of this kind each access goes to.

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
    # The line that its set was asked for last is there: most accesses are such, and cost nothing.
    repeated = np.zeros(len(lines), bool)
    repeated[1:] = (where[1:] == where[:-1]) & (tags[1:] == tags[:-1])
    order, where, tags = order[~repeated], where[~repeated], tags[~repeated]
    missed[order] = _by_sets(where, tags, ways)
    return missed


def _hash(lines: np.ndarray, sets: int) -> np.ndarray:
    return (lines ^ (lines // sets) ^ (lines // (sets * sets))) % sets


def _by_sets(where: np.ndarray, tags: np.ndarray, ways: int) -> np.ndarray:
    """Misses of accesses that are sorted by set, none to the same line as the one before: way by way.

    Of the lines of a set in the order in which they were asked for, the last one first, that at a place is the one
    which was a place further up before the access before, if that access went to none further up; otherwise it is the
    one which was there.
    """
    starts = np.r_[True, where[1:] != where[:-1]]
    numbers = np.arange(len(where), dtype=np.int32)
    last = np.where(starts, -1, numbers - 1)  # when the line at a place was asked for last, -1 for none
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
