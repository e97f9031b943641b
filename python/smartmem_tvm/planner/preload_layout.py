# SPDX-License-Identifier: Apache-2.0
"""Place activations at both ends of the arena, so that weights stream through its middle (FlexNN 3.3.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

import numpy as np

from .arena import Block, aligned, live_bytes
from .arena_search import plan_arena

WORK = 150_000
"""Pairs of blocks that `plan_arena` may visit for the layout of last resort: tenths of a second for 1300 blocks."""

Place = tuple[int, bool]
"""Bytes from the arena's beginning; or, if the second is true, from the arena's end to the end of the block."""


class Parts:
    """The blocks of a problem, split into those that live at several steps and those that live at one.

    Attributes
    ----------
    sizes : list of int
        Sizes of the blocks in bytes, rounded up to the alignment.
    long : list of int
        Numbers of the blocks that live at more than one step.
    short : list of list of int
        For each step, the numbers of the blocks that live at this step only, the largest first.
    live : numpy.ndarray
        Bytes in use at each step.
    """

    def __init__(self, blocks: Sequence[Block], steps: int, alignment: int):
        self.blocks, self.steps, self.alignment = blocks, steps, alignment
        self.sizes = [aligned(block.bytes, alignment) for block in blocks]
        self.long = [n for n, block in enumerate(blocks) if block.first < block.last]
        self.short: list[list[int]] = [[] for _ in range(steps)]
        for number in sorted(range(len(blocks)), key=lambda n: (-self.sizes[n], n)):
            if blocks[number].first == blocks[number].last:
                self.short[blocks[number].first].append(number)
        self.begin: list[list[int]] = [[] for _ in range(steps)]
        for number in self.long:
            self.begin[blocks[number].first].append(number)
        self.live = np.zeros(steps, "int64")
        live = live_bytes(blocks, alignment)
        self.live[: len(live)] = live

    @property
    def bound(self) -> int:
        """Lower bound of the arena's size in bytes."""
        return int(self.live.max(initial=0))


class Layout:
    """The places of the long blocks, and for each step places of its short blocks.

    Attributes
    ----------
    places : dict of int to Place
        Place of each long block.
    needs : list of int
        Bytes of arena that each step needs without preloading.
    """

    def __init__(self, parts: Parts, places: dict[int, Place], planned: Sequence[int] | None = None):
        self.parts, self.places, self.planned = parts, places, planned
        live: list[tuple[list, list]] = [([], []) for _ in range(parts.steps)]
        for number, (offset, high) in places.items():
            block, taken = parts.blocks[number], (offset, offset + parts.sizes[number])
            for step in range(block.first, block.last + 1):
                live[step][high].append(taken)
        # For each step, the bytes in use from the beginning and from the end, and the gaps: (bytes, offset, from end).
        self.reach: list[tuple[int, int]] = []
        self.gaps: list[list[tuple[int, int, bool]]] = []
        for ends in live:
            reach, gaps = [0, 0], []
            for high in (False, True):
                for begin, end in sorted(ends[high]):
                    if begin > reach[high]:
                        gaps.append((begin - reach[high], reach[high], bool(high)))
                    reach[high] = max(reach[high], end)
            self.reach.append((reach[0], reach[1]))
            self.gaps.append(gaps)
        self.needs = [self.pack(step)[0] for step in range(parts.steps)]

    @cached_property
    def bytes(self) -> int:
        """Size of the smallest arena for this layout, in bytes."""
        return max(self.needs, default=0)

    def pack(self, step: int, pinned: Collection[int] = ()) -> tuple[int, dict[int, Place]]:
        """Return the arena that a step needs, and the places of its short blocks that are not pinned.

        The largest block comes first. Each goes into the smallest gap between activations that holds it, or else into
        the middle.
        """
        short = [n for n in self.parts.short[step] if n not in pinned]
        found, (middle, top), gaps = {}, self.reach[step], list(self.gaps[step])
        for number in short:
            size = self.parts.sizes[number]
            fitting = [gap for gap in gaps if gap[0] >= size]
            if fitting:
                gap = min(fitting)
                gaps.remove(gap)
                gaps.append((gap[0] - size, gap[1] + size, gap[2]))
                found[number] = (gap[1], gap[2])
            else:
                found[number] = (middle, False)
                middle += size
        if self.planned is None:
            return middle + top, found
        ends = [self.planned[n] + self.parts.sizes[n] for n in short]
        planned = max([self.reach[step][0], *ends])
        if planned < middle + top:
            return planned, {n: (self.planned[n], False) for n in short}
        return middle + top, found


def both_ends(parts: Parts) -> Iterator[Layout]:
    """Yield layouts with a contiguous middle, for some orders of the activations; they do not depend on the budget."""
    blocks, sizes = parts.blocks, parts.sizes
    life = {n: blocks[n].last - blocks[n].first for n in parts.long}
    peak = {n: int(parts.live[blocks[n].first : blocks[n].last + 1].max()) for n in parts.long}
    keys = (
        lambda n: (blocks[n].first, -life[n]),
        lambda n: (-life[n], blocks[n].first),
        lambda n: (-sizes[n] * life[n], blocks[n].first),
        lambda n: (-peak[n], -sizes[n]),
        lambda n: (-sizes[n], -life[n]),
    )
    for key in keys:
        yield Layout(parts, _two_stacks(parts, sorted(parts.long, key=key)))


def last_resort(parts: Parts) -> Layout:
    """Return the layout of `plan_arena` for all blocks: sometimes a smaller arena, but without a contiguous middle."""
    arena = plan_arena(parts.blocks, parts.alignment, WORK)
    return Layout(parts, {n: (arena.offsets[n], False) for n in parts.long}, arena.offsets)


def _two_stacks(parts: Parts, order: Sequence[int]) -> dict[int, Place]:
    """Put each block, first fit, on the end that leaves more free memory at the steps at which it lives."""
    blocks, sizes = parts.blocks, parts.sizes
    first, last = (np.array([getattr(block, name) for block in blocks], "int64") for name in ("first", "last"))
    begin, end = np.zeros(len(blocks), "int64"), np.zeros(len(blocks), "int64")
    placed = np.zeros((2, len(blocks)), bool)
    needs = np.array([sum(sizes[n] for n in short) for short in parts.short], "int64")
    reach, places, side = np.zeros((2, parts.steps), "int64"), {}, 1
    for number in order:
        life = slice(first[number], last[number] + 1)
        met = (first <= last[number]) & (first[number] <= last)
        choices = []
        for high in (1 - side, side):  # in a tie, the block goes to the other end than the previous one
            near = np.flatnonzero(met & placed[high])
            offset = _first_fit(sorted(zip(begin[near].tolist(), end[near].tolist())), sizes[number])
            total = np.maximum(reach[high, life], offset + sizes[number]) + reach[1 - high, life] + needs[life]
            choices.append((int(total.max()), int(total.sum()), offset, high))
        _, _, offset, side = min(choices, key=lambda choice: choice[:3])
        begin[number], end[number], placed[side, number] = offset, offset + sizes[number], True
        reach[side, life] = np.maximum(reach[side, life], end[number])
        places[number] = (offset, bool(side))
    return places


def _first_fit(taken: Sequence[tuple[int, int]], size: int) -> int:
    free = 0
    for begin, end in taken:
        if begin - free >= size:
            break
        free = max(free, end)
    return free
