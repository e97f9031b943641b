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
    """Misses of accesses that are sorted by set: the first one of every set, then the second ..."""
    starts = np.flatnonzero(np.r_[True, where[1:] != where[:-1]])
    counts = np.diff(np.r_[starts, len(where)])
    longest_first = np.argsort(-counts, kind="stable")
    starts, counts = starts[longest_first], counts[longest_first]
    content = np.full((len(starts), ways), -1, np.int64)  # the most recent line first
    missed = np.zeros(len(where), bool)
    alive = len(starts) - np.searchsorted(counts[::-1], np.arange(counts[0]), side="right")
    columns = np.arange(ways)
    for step, live in enumerate(alive):
        at = starts[:live] + step
        tag, now = tags[at], content[:live]
        equal = now == tag[:, None]
        hit = equal.any(axis=1)
        missed[at] = ~hit
        depth = np.where(hit, equal.argmax(axis=1), ways - 1)
        # All lines above the one that is taken out move down by one.
        moved = np.empty_like(now)
        moved[:, 0], moved[:, 1:] = tag, now[:, :-1]
        content[:live] = np.where(columns <= depth[:, None], moved, now)
    return missed
