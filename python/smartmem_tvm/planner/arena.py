# SPDX-License-Identifier: Apache-2.0
"""Plans of an arena, one allocation for many tensors: the plan, its lower bound, and the check of its rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Block:
    """A piece of memory and the steps at which it is live.

    Attributes
    ----------
    bytes : int
        Size in bytes, more than 0.
    first, last : int
        The step that first writes it, and the last step that reads it.
    """

    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """A plan.

    Attributes
    ----------
    offsets : tuple of int
        Offset of each block, in bytes from the beginning of the arena.
    bytes : int
        Size of the arena in bytes.
    bound : int
        Lower bound of any plan in bytes, see `lower_bound`.
    """

    offsets: tuple[int, ...]
    bytes: int
    bound: int


class PlanError(ValueError):
    """A plan in which a tensor would overwrite another one, or that breaks the alignment or the size."""


def aligned(size: int, alignment: int) -> int:
    """Round a size up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


def live_bytes(blocks: Sequence[Block], alignment: int = 1) -> np.ndarray:
    """Return the bytes in use at each step, each block rounded up to `alignment`."""
    change = np.zeros(max((block.last for block in blocks), default=-1) + 2, "int64")
    for block in blocks:
        size = aligned(block.bytes, alignment)
        change[block.first] += size
        change[block.last + 1] -= size
    return np.cumsum(change)[:-1]


def lower_bound(blocks: Sequence[Block], alignment: int = 1) -> int:
    """Return the largest sum of live bytes at any step: no arena can be smaller."""
    return int(live_bytes(blocks, alignment).max(initial=0))


def check_arena(blocks: Sequence[Block], arena: Arena, alignment: int) -> None:
    """Prove that a plan is sound.

    Raises
    ------
    PlanError
        If two blocks that are live at the same step share a byte, if a block is not aligned or not within the arena, or
        if there is not one offset for each block.
    """
    if len(arena.offsets) != len(blocks):
        raise PlanError(f"the plan has {len(arena.offsets)} offsets for {len(blocks)} blocks.")
    if not blocks:
        return
    begin = np.array(arena.offsets, "int64")
    end = begin + np.array([block.bytes for block in blocks], "int64")
    first, last = (np.array([getattr(block, name) for block in blocks]) for name in ("first", "last"))
    _refuse((end <= begin) | (last < first), blocks, "has no bytes, or ends before it begins")
    _refuse(begin % alignment != 0, blocks, f"does not begin at a multiple of {alignment}")
    _refuse((begin < 0) | (end > arena.bytes), blocks, f"is not within the {arena.bytes} bytes of the arena")
    # Blocks sorted by address: each is compared with the blocks that begin before it ends.
    order = np.argsort(begin, kind="stable")
    begin, end, first, last = begin[order], end[order], first[order], last[order]
    beyond = np.searchsorted(begin, end, side="left")
    for place in range(len(order)):
        others = slice(place + 1, beyond[place])
        met = np.flatnonzero((first[others] <= last[place]) & (first[place] <= last[others]))
        if met.size:
            one, two = int(order[place]), int(order[place + 1 + met[0]])
            raise PlanError(f"{blocks[one]} at {arena.offsets[one]} and {blocks[two]} at {arena.offsets[two]} overlap.")


def _refuse(wrong: np.ndarray, blocks: Sequence[Block], rule: str) -> None:
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise PlanError(f"{blocks[at]}, number {at}, {rule}.")
