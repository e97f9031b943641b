# SPDX-License-Identifier: Apache-2.0
"""Plan the time and place of each load, step by step, as early as memory allows (FlexNN 3.3.2, Algorithm 1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from .preload_layout import Layout

Span = tuple[int, int]


@dataclass(frozen=True)
class Schedule:
    """The offset of each block, 0 if it is pinned; and for each weight, the step after which it may be loaded."""

    offsets: list[int]
    after: dict[int, int]


# Choices among spans that are free equally early: the span, and whether the block goes to its upper end.
CHOICES: tuple[Callable[[list[Span], int], tuple[Span, bool]], ...] = (
    lambda spans, count: (spans[0], False),
    lambda spans, count: (spans[-1], True),
    lambda spans, count: (min(spans, key=lambda span: span[1] - span[0]), False),
    lambda spans, count: (spans[-(count % 2)], count % 2 == 1),
)


class Addresses:
    """The last planned step at which each address is in use, stored as pieces of the arena sorted by address."""

    def __init__(self, top: int):
        self.edges, self.until = [0, top], [-1]

    def copy(self) -> Addresses:
        """Return a copy that can be discarded."""
        other = Addresses(0)
        other.edges, other.until = self.edges[:], self.until[:]
        return other

    def use(self, begin: int, size: int, until: int) -> None:
        """Add a block in the place of blocks that have ended."""
        edges, end = self.edges, begin + size
        left, right = bisect_right(edges, begin) - 1, bisect_left(edges, end)
        new_edges, new_until = [begin], [until]
        if edges[left] < begin:
            new_edges, new_until = [edges[left], begin], [self.until[left], until]
        if edges[right] > end:
            new_edges.append(end)
            new_until.append(self.until[right - 1])
        edges[left:right], self.until[left:right] = new_edges, new_until

    def free(self, since: int, size: int) -> list[Span]:
        """Return the spans of at least `size` bytes that are free after step `since`."""
        spans, begin, edges = [], -1, self.edges
        for at, until in enumerate(self.until):
            if until <= since:
                if begin < 0:
                    begin = edges[at]
            elif begin >= 0:
                if edges[at] - begin >= size:
                    spans.append((begin, edges[at]))
                begin = -1
        if begin >= 0 and edges[-1] - begin >= size:
            spans.append((begin, edges[-1]))
        return spans

    def earliest(self, least: int, step: int, size: int) -> int | None:
        """Return the first step, from `least` on, after which `size` bytes are free up to `step`, or None."""
        if self.free(least, size):
            return least
        times = sorted({until for until in self.until if least < until < step})
        at = bisect_left(times, True, key=lambda time: bool(self.free(time, size)))
        return times[at] if at < len(times) else None

    def latest(self, begin: int, size: int) -> int:
        """Return the last step at which one of these addresses is in use."""
        return max(self.until[bisect_right(self.edges, begin) - 1 : bisect_left(self.edges, begin + size)])

    def forget(self, since: int) -> None:
        """Merge pieces that are not in use after step `since`, which later loads cannot distinguish."""
        edges, kept = [], []
        for edge, until in zip(self.edges, self.until):
            until = max(until, since)
            if not kept or kept[-1] != until:
                edges.append(edge)
                kept.append(until)
        self.edges, self.until = [*edges, self.edges[-1]], kept


class _Steps:
    """The state of the walk over the steps. Loads keep their order, so no later `after` is less than `least`."""

    def __init__(self, layout: Layout, top: int, tensors: int, pinned: Collection[int], choice: int):
        self.layout, self.parts, self.top, self.tensors = layout, layout.parts, top, tensors
        self.pinned, self.choose = pinned, CHOICES[choice]
        self.offsets = [0] * len(self.parts.blocks)
        self.after: dict[int, int] = {}
        self.addresses, self.least, self.count = Addresses(top), -1, 0

    def run(self, preload: bool) -> Schedule:
        for step in range(self.parts.steps):
            for number in self.parts.begin[step]:
                self._put(number, self._address(number, self.layout.places[number]), self.parts.blocks[number].last)
            short = [n for n in self.parts.short[step] if n not in self.pinned]
            if not short:
                continue
            if preload:
                self.addresses.forget(self.least)
                before = self.addresses, self.least, self.count
                for attempt in (self._weights_first, self._intermediates_first):
                    self.addresses, self.least, self.count = before[0].copy(), *before[1:]
                    if attempt(step, short):
                        break
                else:
                    self.addresses, self.least, self.count = before
                    self._at_last(step, short)
            else:
                self.least = step - 1
                self._at_last(step, short)
        return Schedule(self.offsets, self.after)

    def _weights(self, numbers: Sequence[int]) -> Iterator[int]:
        """Return the weights among some blocks, in the order in which they are loaded."""
        return (n for n in sorted(numbers) if n >= self.tensors)

    def _weights_first(self, step: int, short: Sequence[int]) -> bool:
        return self._preload(step, short) and self._fill(step, short)

    def _intermediates_first(self, step: int, short: Sequence[int]) -> bool:
        """Preload with the workspaces placed first, as without preloading; beyond the paper, it saves many loads."""
        if all(n >= self.tensors for n in short):
            return False
        for number, place in self.layout.pack(step, self.pinned)[1].items():
            if number < self.tensors:
                self._put(number, self._address(number, place), step)
        return self._preload(step, short)

    def _at_last(self, step: int, short: Sequence[int]) -> None:
        """Place all blocks as without preloading, where they always fit, and load as soon as the places are free."""
        places = self.layout.pack(step, self.pinned)[1]
        for number in self._weights(short):
            offset = self._address(number, places[number])
            self.least = max(self.least, self.addresses.latest(offset, self.parts.sizes[number]))
            self.after[number] = self.least
            self._put(number, offset, step)
        for number in short:
            if number < self.tensors:
                self._put(number, self._address(number, places[number]), step)

    def _preload(self, step: int, short: Sequence[int]) -> bool:
        for number in self._weights(short):
            size = self.parts.sizes[number]
            time = self.addresses.earliest(self.least, step, size)
            if time is None:
                return False
            (begin, end), upper = self.choose(self.addresses.free(time, size), self.count)
            self.least = self.after[number] = time
            self.count += 1
            self._put(number, end - size if upper else begin, step)
        return True

    def _fill(self, step: int, short: Sequence[int]) -> bool:
        for number in short:
            if number < self.tensors:
                size = self.parts.sizes[number]
                spans = self.addresses.free(step - 1, size)
                if not spans:
                    return False
                # Most weights lie at the lower end of what is free.
                self._put(number, min(spans, key=lambda span: span[1] - span[0])[1] - size, step)
        return True

    def _address(self, number: int, place: tuple[int, bool]) -> int:
        offset, high = place
        return self.top - offset - self.parts.sizes[number] if high else offset

    def _put(self, number: int, offset: int, until: int) -> None:
        self.offsets[number] = offset
        self.addresses.use(offset, self.parts.sizes[number], until)


def schedule(
    layout: Layout, top: int, tensors: int, pinned: Collection[int] = (), choice: int = 0, preload: bool = True
) -> Schedule:
    """Return offsets and times for an arena of `top` bytes, at least the need of the layout without pinned blocks.

    Parameters
    ----------
    tensors : int
        Blocks from this number on are weights, in the order in which they are loaded.
    pinned : collection of int
        Blocks that lie elsewhere.
    choice : int
        Index into `CHOICES`.
    preload : bool
        If False, each weight is loaded when the step before its own is done.
    """
    return _Steps(layout, top, tensors, pinned, choice).run(preload)


def timeline(
    seconds: Sequence[float], steps: Sequence[int], reads: Sequence[float], after: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Return the end of each step and of each load, with one loader, in order, and one processor.

    Parameters
    ----------
    seconds : sequence of float
        Computing time of each step.
    steps, reads, after : sequence
        For each load, the step that waits for it, its seconds, and the step that it waits for, or -1.
    """
    ends, read, now, free, load = [], [], 0.0, 0.0, 0
    for step, took in enumerate(seconds):
        while load < len(steps) and steps[load] == step:
            start = ends[after[load]] if after[load] >= 0 else 0.0
            free = max(free, start) + reads[load]
            read.append(free)
            now = max(now, free)
            load += 1
        now += took
        ends.append(now)
    return ends, read
