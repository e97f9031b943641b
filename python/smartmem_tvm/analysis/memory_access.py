# SPDX-License-Identifier: Apache-2.0
"""Memory accesses and cache misses of scheduled kernels, from their access patterns (SmartMem Figures 7 and 9).

The requests of threads are counted, over all threads and iterations or a sample of them. The misses are simulated: the
accesses of all thread blocks that run at once, or a sample in time, go through a model of the device's caches. No
formula is specific to an operator. Each kernel starts with empty caches.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import ceil

import numpy as np
from tvm import tirx

from ..tables.targets import Row
from .access_pattern import launches
from .cache_model import misses
from .memory_events import Grid, Sample, Site, together

_PHONE_CORES = 6


@dataclass(frozen=True)
class Accesses:
    """Memory accesses of one kernel or several.

    Attributes
    ----------
    loads, stores : float
        Instructions of single threads, each of up to 16 bytes or one texel.
    texel_loads, texel_stores : float
        Loads and stores that go to images.
    load_lines, store_lines : float
        Lines (or sectors) requested of the caches: the distinct lines of each instruction of a sub-group.
    buffer_lines, buffer_misses : float
        The part of `load_lines`, and of `l2_misses`, that are loads of buffers.
    l1_misses : float
        Lines that go on to the second level: misses, stores, and all of a buffer if buffers have no first level.
    l2_misses : float
        Lines that go on to memory.
    """

    loads: float = 0.0
    stores: float = 0.0
    texel_loads: float = 0.0
    texel_stores: float = 0.0
    load_lines: float = 0.0
    store_lines: float = 0.0
    l1_misses: float = 0.0
    l2_misses: float = 0.0
    buffer_lines: float = 0.0
    buffer_misses: float = 0.0

    @property
    def lines(self) -> float:
        """Lines requested of the caches."""
        return self.load_lines + self.store_lines

    def __add__(self, other: Accesses) -> Accesses:
        return Accesses(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> Accesses:
        return Accesses(*(getattr(self, f.name) * times for f in fields(self)))

    def as_dict(self) -> dict[str, float]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Effort:
    """Limits on the part of a kernel that is enumerated; a smaller kernel is enumerated whole.

    Attributes
    ----------
    points : int
        Accesses of single threads evaluated to count lines, and as many again for the misses.
    lines : int
        Lines sent through the caches.
    windows : int
        Most windows of time that these lines are taken from; the first half of each only warms the caches. A line that
        is read again after more than a window counts as a miss, although a large cache may have kept it.
    """

    points: int = 1 << 21
    lines: int = 1 << 19
    windows: int = 4


def usual_effort(row: Row) -> Effort:
    """Return the default effort: for each core, as many lines as for one of a phone's six cores.

    The more thread blocks run at once, the less can be left out: if all of them do, no window of time is like another.
    """
    return Effort(lines=Effort.lines * max(1, row.cores // _PHONE_CORES))


def kernel_accesses(func: tirx.PrimFunc, row: Row, effort: Effort | None = None) -> Accesses:
    """Count the memory accesses of one launch of a scheduled PrimFunc.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Scheduled kernel; its tensors are buffers or textures.
    row : Row
        The device: sub-group, caches, number of cores.
    effort : Effort, optional
        Limits of the enumeration, by default `usual_effort`.

    Raises
    ------
    Unmodelled
        If the pattern depends on data, as in a search loop.
    """
    effort, tensors, total = effort or usual_effort(row), {}, Accesses()
    for launch in launches(func):
        total += _Model(Grid(launch, row, tensors), row, effort).accesses()
    return total


@dataclass(frozen=True)
class _Window:
    """Rounds of thread blocks, one on each core, between two points of their time."""

    first: int
    rounds: int
    begin: int
    end: int
    whole: bool


@dataclass(frozen=True, eq=False)
class _Weighted(Sample):
    """A sample, and how many each of its thread blocks and instances stands for."""

    many: np.ndarray
    often: np.ndarray


@dataclass(frozen=True, eq=False)
class _Events:
    """Requested lines in time order, one array element each."""

    line: np.ndarray
    when: np.ndarray
    core: np.ndarray
    texture: np.ndarray
    store: np.ndarray


class _Model:
    """One launch: `Grid` gives the places of its accesses, and this class counts and simulates them."""

    def __init__(self, grid: Grid, row: Row, effort: Effort):
        self.grid, self.row, self.effort = grid, row, effort
        self.random = np.random.default_rng(0)
        self.cores = min(row.cores, grid.groups)
        self.numbers = {site: number for number, site in enumerate(grid.sites)}

    def accesses(self) -> Accesses:
        # Each site has its own sample, so that errors cancel out; equally large samples are evaluated together.
        samples = {site: self.sample(site) for site in self.grid.sites}
        alike = together(
            self.grid.sites, lambda site: (site.access.store, *map(len, (samples[site].many, samples[site].often)))
        )
        counted = sum((self.count(sites, [samples[site] for site in sites]) for sites in alike), Accesses())
        if not counted.lines:
            return counted
        return counted + self.misses(counted.lines)

    def sample(self, site: Site) -> _Weighted:
        """Return some thread blocks and iterations of a site, and how many each of them stands for."""
        points = max(1, self.effort.points // len(self.grid.sites) // self.grid.threads)
        instances, often = self.some(site.instances, max(3, points // min(self.grid.groups, 64)))
        groups, many = self.some(self.grid.groups, max(3, points // len(instances)))
        return _Weighted(groups, instances, many, often)

    def count(self, sites: list[Site], samples: list[_Weighted]) -> Accesses:
        """Count instructions and lines of similar sites, for all threads of sampled thread blocks and iterations."""
        access = sites[0].access
        many, often = (np.stack([getattr(each, weights) for each in samples]) for weights in ("many", "often"))
        lines, requests = self.grid.lines(sites, samples)
        found, asked = (
            float(np.einsum("sg,sgi,si", many, counts, often)) for counts in ((lines >= 0).sum((3, 4)), requests)
        )
        texels = asked if access.texture else 0.0
        if access.store:
            return Accesses(stores=asked, texel_stores=texels, store_lines=found)
        of_buffers = 0.0 if access.texture else found
        return Accesses(loads=asked, texel_loads=texels, load_lines=found, buffer_lines=of_buffers)

    def some(self, count: int, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers below `count` in order, all of them or about `most`, and how many each stands for.

        The first and the last number stand for themselves: a loop often differs in its first and last iteration.
        """
        if count <= most:
            return np.arange(count), np.ones(count)
        inner = np.unique(self.random.integers(1, count - 1, most - 2))
        return np.r_[0, inner, count - 1], np.r_[1, np.full(len(inner), (count - 2) / len(inner)), 1]

    def misses(self, lines: float) -> Accesses:
        """Estimate the misses of the first and of the second level, for all `lines` requested."""
        first = second = loads = seen = 0
        for window in self.windows(lines):
            events = self.events(window)
            one, two = self.through_caches(events)
            counted = np.ones(len(one), bool) if window.whole else self.warm(events, two)
            buffers = two & ~events.texture & ~events.store
            first, second, loads = (n + m[counted].sum() for n, m in ((first, one), (second, two), (loads, buffers)))
            seen += counted.sum()
        share = lines / seen
        all_misses = min(float(second * share), self.most_misses())
        of_buffers = all_misses * float(loads / second) if second else 0.0
        return Accesses(l1_misses=float(first * share), l2_misses=all_misses, buffer_misses=of_buffers)

    def most_misses(self) -> float:
        """Bound the misses: each line misses once if all tensors fit into the second level; otherwise no bound."""
        sizes = [tensor.size for tensor in {site.tensor for site in self.grid.sites}]
        fits = sum(sizes) <= self.row.l2_bytes
        return sum(ceil(size / self.row.sector_bytes) for size in sizes) if fits else float("inf")

    def warm(self, events: _Events, missed: np.ndarray) -> np.ndarray:
        """Return the events that count: the second half of a window, and those after the cache has been replaced."""
        half = events.when[0] + (events.when[-1] - events.when[0]) // 2
        return (events.when > half) | (np.cumsum(missed) > self.row.l2_bytes // self.row.sector_bytes)

    def windows(self, lines: float) -> list[_Window]:
        """Return windows that cover the launch, or as much of it as the effort allows."""
        grid, effort = self.grid, self.effort
        rounds, length = ceil(grid.groups / self.cores), grid.launch.length
        points = grid.groups * grid.threads * sum(site.instances for site in grid.sites)
        cost = max(lines / effort.lines, points / (4 * effort.points))  # of the whole launch, relative to the effort
        if cost <= 1:
            return [_Window(0, rounds, 0, length, True)]
        share = int(rounds / cost)
        if share >= 1:
            count = max(1, min(effort.windows, share // 2))
            return [_Window(at, share // count, 0, length, False) for at in _spread(rounds - share // count, count)]
        part = max(1, min(length, int(length * rounds / cost)))
        begin = (length - part) // 2
        return [_Window((rounds - 1) // 2, 1, begin, begin + part, False)]

    def events(self, window: _Window) -> _Events:
        """Return the lines that the thread blocks of a window request; those of a round run side by side."""
        grid = self.grid
        last = min(grid.groups, (window.first + window.rounds) * self.cores)
        groups = np.arange(window.first * self.cores, last)
        alike = together(grid.sites, lambda site: (site.first_after(window.begin), site.first_after(window.end)))
        parts = [self.events_of(sites, groups, window) for sites in alike]
        turn, *columns = [np.concatenate([part[i] for part in parts]) for i in range(6)]
        order = np.argsort(turn, kind="stable")
        return _Events(*(column[order] for column in columns))

    def events_of(self, sites: list[Site], groups: np.ndarray, window: _Window) -> tuple[np.ndarray, ...]:
        """Return the columns of `events` for similar sites, in any order; the first column is the sort key."""
        instances = np.arange(sites[0].first_after(window.begin), sites[0].first_after(window.end))
        lines, _ = self.grid.lines(sites, [Sample(groups, instances)] * len(sites))
        site, group, instance, *_ = at = np.nonzero(lines >= 0)
        times = np.stack([each.times(instances) for each in sites])
        when = (groups // self.cores)[group] * self.grid.launch.length + times[site, instance]
        numbers = np.array([self.numbers[each] for each in sites])
        return (
            when * len(self.numbers) + numbers[site],
            lines[at],
            when,
            (groups % self.cores)[group],
            np.full(len(site), sites[0].access.texture),
            np.array([each.access.store for each in sites])[site],
        )

    def through_caches(self, events: _Events) -> tuple[np.ndarray, np.ndarray]:
        """Return the events that miss or bypass the first level, and those that also miss the second."""
        row = self.row
        first = np.ones(len(events.line), bool)
        for texture, size in ((True, row.texture_l1_bytes), (False, row.buffer_l1_bytes)):
            # Stores of a GPU bypass the first level.
            cached = (events.texture == texture) & (~events.store | (row.kind == "llvm"))
            if size and cached.any():
                lines, core = events.line[cached], events.core[cached]
                first[cached] = misses(lines, size // row.sector_bytes, row.l1_ways, core)
        second = np.zeros(len(events.line), bool)
        second[first] = misses(events.line[first], row.l2_bytes // row.sector_bytes, row.l2_ways)
        return first, second


def _spread(room: int, count: int) -> list[int]:
    """Return the starts of `count` windows that leave `room`, as much before the first as after the last."""
    return [room * (2 * i + 1) // (2 * count) for i in range(count)]
