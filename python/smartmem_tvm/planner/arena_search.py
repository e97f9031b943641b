# SPDX-License-Identifier: Apache-2.0
"""Find a small arena: place blocks greedily, in an order that a search improves (FluidML Algorithm 4, extended)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .arena import Arena, Block, aligned, check_arena, live_bytes

WORK = 3_000_000
"""Pairs of live blocks that the search may visit, which takes a few seconds. The limit is no time, as the same graph
must become the same code on each machine."""


def plan_arena(blocks: Sequence[Block], alignment: int = 64, work: int = WORK) -> Arena:
    """Return a small arena for some blocks, checked.

    Parameters
    ----------
    alignment : int
        Alignment of each offset, in bytes.
    work : int
        Pairs of blocks that the search may visit if none of the first orders reaches the lower bound.

    Returns
    -------
    Arena
        The same arena for the same blocks, on any machine.
    """
    search = _Search(blocks, alignment)
    search.run(work)
    arena = Arena(tuple(search.best_offsets), search.best, search.bound)
    check_arena(blocks, arena, alignment)
    return arena


class _Search:
    """The best plan so far.

    Attributes
    ----------
    best, best_offsets, best_order
        The bytes of the best plan, its offsets, and the order of blocks that led to it.
    work : int
        Pairs of blocks visited so far.
    """

    def __init__(self, blocks: Sequence[Block], alignment: int):
        self.blocks = blocks
        self.sizes = [aligned(block.bytes, alignment) for block in blocks]
        self.live = live_bytes(blocks, alignment)
        self.bound = int(self.live.max(initial=0))
        self.neighbours = _neighbours(blocks)
        self.best, self.best_offsets, self.best_order = sum(self.sizes) + 1, [0] * len(blocks), range(len(blocks))
        self.last: list[int] = []  # the offsets of the last order that was placed completely
        self.work = 0

    def run(self, work: int) -> None:
        """Try several sorted orders, and then changes of the best one."""
        for order in self._orders():
            for lowest in (False, True):
                self._try(order, lowest)
                if self.best == self.bound:
                    return
        for lowest in (False, True):
            self._climb(lowest, self.work + work // 2)

    def _orders(self) -> Iterator[list[int]]:
        numbers, blocks, size = range(len(self.blocks)), self.blocks, self.sizes
        peak = [int(self.live[block.first : block.last + 1].max()) for block in blocks]
        life = [block.last - block.first + 1 for block in blocks]
        keys: tuple[Callable[[int], tuple], ...] = (
            lambda n: (-size[n], -life[n], n),  # FluidML's
            lambda n: (-peak[n], -size[n], n),
            lambda n: (-size[n] * life[n], n),
            lambda n: (-life[n], -size[n], n),
            lambda n: (-peak[n], -size[n] * life[n], n),
            lambda n: (blocks[n].first, -size[n], n),
        )
        return (sorted(numbers, key=key) for key in keys)

    def _try(self, order: Sequence[int], lowest: bool, limit: int | None = None) -> int | None:
        """Return the bytes of the arena for an order, None if not below the limit, by default the best so far."""
        limit = self.best if limit is None else limit
        offsets: list[int | None] = [None] * len(order)
        top = 0
        for number in order:
            offset = self._place(number, offsets, lowest)
            top = max(top, offset + self.sizes[number])
            if top >= limit:
                return None
            offsets[number] = offset
        if top < self.best:
            self.best, self.best_offsets, self.best_order = top, offsets, order
        self.last = offsets
        return top

    def _place(self, number: int, offsets: list[int | None], lowest: bool) -> int:
        """Return the offset for a block: the smallest gap that holds it, or the lowest gap, else above all others."""
        size, sizes = self.sizes[number], self.sizes
        near = self.neighbours[number]
        self.work += len(near)
        taken = sorted([(offsets[n], offsets[n] + sizes[n]) for n in near if offsets[n] is not None])
        end, found, smallest = 0, None, None
        for begin, until in taken:
            gap = begin - end
            if gap >= size and (smallest is None or gap < smallest):
                if lowest:
                    return end
                found, smallest = end, gap
            end = max(end, until)
        return end if found is None else found

    def _climb(self, lowest: bool, work: int) -> None:
        """Move blocks in the order, chiefly those at the arena's end, up to the bound or the limit of work."""
        order, chance = list(self.best_order), random.Random(len(self.blocks))
        current = self._try(order, lowest, self.best * 2)
        if current is None:
            return
        offsets = self.last
        while self.best > self.bound and self.work < work:
            changed = self._swapped(order, offsets, chance)
            top = self._try(changed, lowest, current + 1)
            if top is not None:
                current, order, offsets = top, changed, self.last

    def _swapped(self, order: list[int], offsets: list[int], chance: random.Random) -> list[int]:
        ends = [offset + size for offset, size in zip(offsets, self.sizes)]
        highest = [n for n in order if ends[n] == max(ends)]
        one = chance.choice(highest)
        if chance.random() < 0.5 and self.neighbours[one]:
            one = chance.choice(self.neighbours[one])
        place = {n: at for at, n in enumerate(order)}
        before = [n for n in self.neighbours[one] if place[n] < place[one]]
        other = chance.choice(before or order)
        changed = list(order)
        if chance.random() < 0.5:
            changed[place[one]], changed[place[other]] = other, one
        else:
            changed.insert(place[other], changed.pop(place[one]))
        return changed


def _neighbours(blocks: Sequence[Block]) -> list[list[int]]:
    """Return, for each block, the other blocks that are live at the same time."""
    first, last = (np.array([getattr(block, name) for block in blocks], "int64") for name in ("first", "last"))
    found = []
    for number in range(len(blocks)):
        met = (first <= last[number]) & (first[number] <= last)
        met[number] = False
        found.append(np.flatnonzero(met).tolist())
    return found
