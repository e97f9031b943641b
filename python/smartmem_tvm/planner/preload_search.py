# SPDX-License-Identifier: Apache-2.0
"""Choose the weights that stay in memory over inferences: those that steps wait for, as far as memory allows."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .preload_layout import Layout
from .preload_steps import CHOICES, Schedule, schedule, timeline

ROUNDS = 8
"""Number of rounds in which the spare memory is given to weights; each round computes anew what the steps wait for."""

STALE = 500
"""Tries without improvement that end the search early, for small problems."""


@dataclass(frozen=True)
class Reading:
    """The loads of a problem, with their times and those of the steps.

    Attributes
    ----------
    tensors : int
        Blocks from this number on are the uses.
    weights, steps, reads : tuple
        For each use, its weight, the step that reads it, and the seconds of its load.
    seconds : tuple of float
        Computing time of each step.
    """

    tensors: int
    weights: tuple[int, ...]
    steps: tuple[int, ...]
    reads: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Found:
    """A plan: its seconds, its layout and schedule, the arena without pinned weights, and the offsets of these."""

    seconds: float
    layout: Layout
    choice: int
    top: int
    pinned: dict[int, int]
    schedule: Schedule


class _Pins:
    """Weights to be pinned, and the arena that the rest then needs."""

    def __init__(self, search: Search, layout: Layout):
        self.search, self.layout = search, layout
        self.needs, self.skip, self.bytes = list(layout.needs), set(), 0
        self.weights: list[int] = []

    def add(self, weight: int) -> bool:
        """Pin one more weight if the budget allows it; return whether it does."""
        search, before = self.search, []
        blocks = search.uses[weight]
        self.skip.update(blocks)
        for step in {search.reading.steps[n - search.reading.tensors] for n in blocks}:
            before.append((step, self.needs[step]))
            self.needs[step] = self.layout.pack(step, self.skip)[0]
        size = search.size(weight)
        if self.bytes + size + max(self.needs) <= search.budget:
            self.bytes += size
            self.weights.append(weight)
            return True
        self.skip.difference_update(blocks)
        for step, need in before:
            self.needs[step] = need
        return False

    def spare(self) -> int:
        return self.search.budget - self.bytes - max(self.needs, default=0)


class Search:
    """A search for the best plan, which is in `best`; a worse plan never replaces it.

    Parameters
    ----------
    layouts : sequence of Layout
        The layouts that fit into the budget, the best first.
    budget : int
        Budget in bytes, a multiple of the alignment.
    """

    def __init__(self, layouts: Sequence[Layout], reading: Reading, budget: int, preload: bool):
        self.layouts, self.reading, self.budget, self.preload = layouts, reading, budget, preload
        self.sizes = layouts[0].parts.sizes
        self.uses: dict[int, list[int]] = {}
        for number, weight in enumerate(reading.weights):
            self.uses.setdefault(weight, []).append(reading.tensors + number)
        self.least, self.best = sum(reading.seconds), None

    def size(self, weight: int) -> int:
        """Return the size of a weight's place, in bytes."""
        return self.sizes[self.uses[weight][0]]

    def done(self) -> bool:
        """Whether no step of the best plan waits."""
        return self.best is not None and self.best.seconds <= self.least * (1 + 1e-9)

    def start(self) -> None:
        """Plan without pinned weights, for the smallest layouts."""
        for layout in self.layouts[:3]:
            self.attempt(_Pins(self, layout), 0)
            if self.done():
                return

    def pin_all(self) -> bool:
        """Pin all weights if there is room; return whether there is."""
        for layout in self.layouts:
            pins = _Pins(self, layout)
            pins.skip.update(n for blocks in self.uses.values() for n in blocks)
            pins.needs = [layout.pack(step, pins.skip)[0] for step in range(len(pins.needs))]
            pins.weights, pins.bytes = list(self.uses), sum(map(self.size, self.uses))
            if pins.spare() >= 0:
                self.attempt(pins, 0)
                return True
        return False

    def pin(self) -> None:
        """Give the spare memory to weights, in rounds: first to those that the end of the inference waits for."""
        found = self.best
        pins = _Pins(self, found.layout)
        part = max(1, -(-pins.spare() // ROUNDS))
        while not self.done():
            limit, count = pins.bytes + part, len(pins.weights)
            for weight in self._worth(found, pins.weights):
                if pins.bytes < limit:
                    pins.add(weight)
            if len(pins.weights) == count:
                break
            found = self.attempt(pins, found.choice)

    def improve(self, until: float, pin: bool) -> None:
        """Try other layouts, choices and pinned weights, until a time of `time.perf_counter`."""
        chance = random.Random(len(self.reading.steps))
        tries = [(layout, choice) for choice in range(len(CHOICES)) for layout in self.layouts]
        stale = 0
        while not self.done() and stale < STALE and time.perf_counter() < until:
            before = self.best
            if tries:
                layout, choice = tries.pop(0)
                self.attempt(self._pins(layout, before.pinned), choice)
            elif pin:
                self._change(chance)
            else:
                return
            stale = stale + 1 if self.best is before else 0

    def keep(self, until: float) -> None:
        """Pin more weights as long as the plan does not get slower, until a time, although no step waits for them.

        The speed of the file varies, and weights that are not loaded cost no energy.
        """
        best = chosen = self.best
        others = sorted(
            self.uses.keys() - set(best.pinned),
            key=lambda weight: (-self.size(weight) * len(self.uses[weight]), weight),
        )
        low, high = 0, len(others)
        while low < high and time.perf_counter() < until:
            middle = (low + high + 1) // 2
            found = self.attempt(self._pins(best.layout, [*best.pinned, *others[:middle]]), best.choice)
            if found.seconds <= best.seconds * (1 + 1e-9):
                low, chosen = middle, found
            else:
                high = middle - 1
        self.best = chosen

    def attempt(self, pins: _Pins, choice: int) -> Found:
        """Return a plan with these weights pinned, and keep it in `best` if it is faster."""
        top = self._top(pins)
        tensors, reading = self.reading.tensors, self.reading
        planned = schedule(pins.layout, top, tensors, pins.skip, choice, self.preload)
        seconds = timeline(reading.seconds, *self._loads(planned)[1:])[0]
        places, offset = {}, top
        for weight in pins.weights:
            places[weight] = offset
            offset += self.size(weight)
        found = Found(seconds[-1] if seconds else 0.0, pins.layout, choice, top, places, planned)
        if self.best is None or found.seconds < self.best.seconds:
            self.best = found
        return found

    def _top(self, pins: _Pins) -> int:
        """Return the arena's bytes without pinned weights: not more than the plan can use."""
        layout, parts = pins.layout, pins.layout.parts
        need, free = max(pins.needs, default=0), self.budget - pins.bytes
        rest = [n for blocks in self.uses.values() for n in blocks if n not in pins.skip]
        if not rest or not self.preload:
            return need
        ends = [max(reach[high] for reach in layout.reach) for high in (0, 1)]
        return min(free, max(need, sum(ends) + 2 * parts.bound + sum(self.sizes[n] for n in rest)))

    def _loads(self, planned: Schedule) -> tuple[list[int], list[int], list[float], list[int]]:
        """Return, for all uses that are not pinned, the use, its step, its seconds, and the step that it waits for."""
        first, numbers = self.reading.tensors, sorted(planned.after)
        return (
            [n - first for n in numbers],
            [self.reading.steps[n - first] for n in numbers],
            [self.reading.reads[n - first] for n in numbers],
            [planned.after[n] for n in numbers],
        )

    def _worth(self, found: Found, pinned: Collection[int]) -> list[int]:
        """Return the weights on the critical path of the loads, those with most uses first, then the largest.

        Each byte of a critical load costs the same time, once for each use.
        """
        uses, *loads = self._loads(found.schedule)
        count = Counter(self.reading.weights[uses[load]] for load in critical(self.reading.seconds, *loads))
        return sorted(count.keys() - set(pinned), key=lambda weight: (-count[weight], -self.size(weight), weight))

    def _pins(self, layout: Layout, weights: Iterable[int]) -> _Pins:
        pins = _Pins(self, layout)
        for weight in weights:
            pins.add(weight)
        return pins

    def _change(self, chance: random.Random) -> None:
        """Unpin some weights at random, and pin others instead."""
        best, layout = self.best, chance.choice(self.layouts)
        if chance.random() < 0.7:
            layout = best.layout
        given_up = chance.random() * 0.5
        pins = self._pins(layout, [w for w in best.pinned if chance.random() >= given_up])
        others = self._worth(best, best.pinned)
        chance.shuffle(others)
        for weight in others[: chance.randrange(len(others) + 1)]:
            pins.add(weight)
        self.attempt(pins, chance.choice((best.choice, chance.randrange(len(CHOICES)))))


def critical(seconds: Sequence[float], steps: Sequence[int], reads: Sequence[float], after: Sequence[int]) -> list[int]:
    """Return the loads on the critical path of the inference, the last first: each of their bytes delays its end."""
    ends, read = timeline(seconds, steps, reads, after)
    last = {step: load for load, step in enumerate(steps)}
    found, step = [], len(seconds) - 1
    while step >= 0:
        load = last.get(step, -1)
        if load < 0 or read[load] <= (ends[step - 1] if step else 0.0):
            step -= 1
            continue
        step = -1
        while load >= 0:
            found.append(load)
            before, waits = (read[load - 1] if load else 0.0), after[load]
            if waits >= 0 and ends[waits] > before:
                step = waits
                break
            load -= 1
    return found
