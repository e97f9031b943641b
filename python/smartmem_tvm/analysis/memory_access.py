# SPDX-License-Identifier: Apache-2.0
"""Memory accesses and cache misses of scheduled kernels, from their access patterns (SmartMem Figures 7 and 9).

What threads ask for is counted exactly, over all threads and iterations or a sample of them, and the misses by sending
the accesses of all groups that run at once, or a sample in time, through the caches of the device. No formula knows an
operator. Each kernel starts with empty caches.
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
    """What goes to memory, in one kernel or several.

    Attributes
    ----------
    loads, stores : float
        Instructions of single threads, each of up to 16 bytes or one texel.
    texel_loads, texel_stores : float
        Those of them that go to images.
    load_lines, store_lines : float
        Lines (or sectors) that the caches are asked for: the distinct ones of each instruction of a sub-group.
    buffer_lines, buffer_misses : float
        Those of `load_lines`, and of `l2_misses`, that are loads of buffers.
    l1_misses : float
        Of these, what goes on to the second level: stores, and all of a buffer where it has no first level.
    l2_misses : float
        Of these, what goes on to memory.
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
        """Lines that the caches are asked for."""
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
    """How much of a kernel is enumerated: all of it where that is less.

    Attributes
    ----------
    points : int
        Accesses of single threads that are worked out to count lines, and as many again for the misses.
    lines : int
        Lines sent through the caches.
    windows : int
        Stretches of time that these are taken from, at most; the first half of each only warms the caches. What is read
        again after more than a stretch counts as a miss, though a cache that is large beside it may have kept it.
    """

    points: int = 1 << 21
    lines: int = 1 << 19
    windows: int = 4


def usual_effort(row: Row) -> Effort:
    """As many lines for each core as one of a phone's six gets.

    The more groups run at once, the less can be left out: where all of them do, no stretch of time is like another.
    """
    return Effort(lines=Effort.lines * max(1, row.cores // _PHONE_CORES))


def kernel_accesses(func: tirx.PrimFunc, row: Row, effort: Effort | None = None) -> Accesses:
    """Count the memory accesses of one launch of a scheduled PrimFunc.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        With its schedule; tensors are buffers or textures.
    row : Row
        The device: sub-group, caches, number of cores.
    effort : Effort, optional
        How much is enumerated, by default `usual_effort`.

    Raises
    ------
    Unmodelled
        If the pattern depends on data (a loop until something is found, say).
    """
    effort, tensors, total = effort or usual_effort(row), {}, Accesses()
    for launch in launches(func):
        total += _Model(Grid(launch, row, tensors), row, effort).accesses()
    return total


@dataclass(frozen=True)
class _Window:
    """Rounds of groups, one on each core, between two points of their time."""

    first: int
    rounds: int
    begin: int
    end: int
    whole: bool


@dataclass(frozen=True, eq=False)
class _Weighted(Sample):
    """A sample, and for how many each of its groups and instances stands."""

    many: np.ndarray
    often: np.ndarray


@dataclass(frozen=True, eq=False)
class _Events:
    """Lines asked for, in the order of time: one element each."""

    line: np.ndarray
    when: np.ndarray
    core: np.ndarray
    texture: np.ndarray
    store: np.ndarray


class _Model:
    """One launch: `Grid` says where its accesses go, here they are counted and sent through the caches."""

    def __init__(self, grid: Grid, row: Row, effort: Effort):
        self.grid, self.row, self.effort = grid, row, effort
        self.random = np.random.default_rng(0)
        self.cores = min(row.cores, grid.groups)
        self.numbers = {site: number for number, site in enumerate(grid.sites)}

    def accesses(self) -> Accesses:
        # Each site has a sample of its own, so that errors cancel out; as large ones are looked at together.
        samples = {site: self.sample(site) for site in self.grid.sites}
        alike = together(
            self.grid.sites, lambda site: (site.access.store, *map(len, (samples[site].many, samples[site].often)))
        )
        counted = sum((self.count(sites, [samples[site] for site in sites]) for sites in alike), Accesses())
        if not counted.lines:
            return counted
        return counted + self.misses(counted.lines)

    def sample(self, site: Site) -> _Weighted:
        """Some groups and iterations of a site, and for how many each of them stands."""
        points = max(1, self.effort.points // len(self.grid.sites) // self.grid.threads)
        instances, often = self.some(site.instances, max(3, points // min(self.grid.groups, 64)))
        groups, many = self.some(self.grid.groups, max(3, points // len(instances)))
        return _Weighted(groups, instances, many, often)

    def count(self, sites: list[Site], samples: list[_Weighted]) -> Accesses:
        """Instructions and lines of sites that are alike: of all threads in a sample of groups and iterations."""
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
        """Numbers below `count` in order, all of them or about `most`, and how many each stands for.

        The first and the last one stand for themselves: what a loop does only there is not missed.
        """
        if count <= most:
            return np.arange(count), np.ones(count)
        inner = np.unique(self.random.integers(1, count - 1, most - 2))
        return np.r_[0, inner, count - 1], np.r_[1, np.full(len(inner), (count - 2) / len(inner)), 1]

    def misses(self, lines: float) -> Accesses:
        """Misses of the first and of the second level, of all `lines` that are asked for."""
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
        """Of tensors that all fit into the second level, each line comes from memory once; otherwise no bound."""
        sizes = [tensor.size for tensor in {site.tensor for site in self.grid.sites}]
        fits = sum(sizes) <= self.row.l2_bytes
        return sum(ceil(size / self.row.sector_bytes) for size in sizes) if fits else float("inf")

    def warm(self, events: _Events, missed: np.ndarray) -> np.ndarray:
        """The second half of a window, and what comes after all that the caches held before it is gone."""
        half = events.when[0] + (events.when[-1] - events.when[0]) // 2
        return (events.when > half) | (np.cumsum(missed) > self.row.l2_bytes // self.row.sector_bytes)

    def windows(self, lines: float) -> list[_Window]:
        """All of the launch, or so much of it as the effort allows."""
        grid, effort = self.grid, self.effort
        rounds, length = ceil(grid.groups / self.cores), grid.launch.length
        points = grid.groups * grid.threads * sum(site.instances for site in grid.sites)
        cost = max(lines / effort.lines, points / (4 * effort.points))  # of the whole launch
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
        """The lines that the groups of a window ask for, all groups of a round side by side."""
        grid = self.grid
        last = min(grid.groups, (window.first + window.rounds) * self.cores)
        groups = np.arange(window.first * self.cores, last)
        alike = together(grid.sites, lambda site: (site.first_after(window.begin), site.first_after(window.end)))
        parts = [self.events_of(sites, groups, window) for sites in alike]
        turn, *columns = [np.concatenate([part[i] for part in parts]) for i in range(6)]
        order = np.argsort(turn, kind="stable")
        return _Events(*(column[order] for column in columns))

    def events_of(self, sites: list[Site], groups: np.ndarray, window: _Window) -> tuple[np.ndarray, ...]:
        """The same of sites that are alike, in any order, with what they are to be put in order by before them."""
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
        """Which events miss the first level, or go past it, and which the second too."""
        row = self.row
        first = np.ones(len(events.line), bool)
        for texture, size in ((True, row.texture_l1_bytes), (False, row.buffer_l1_bytes)):
            # What a GPU stores goes past the first level.
            cached = (events.texture == texture) & (~events.store | (row.kind == "llvm"))
            if size and cached.any():
                lines, core = events.line[cached], events.core[cached]
                first[cached] = misses(lines, size // row.sector_bytes, row.l1_ways, core)
        second = np.zeros(len(events.line), bool)
        second[first] = misses(events.line[first], row.l2_bytes // row.sector_bytes, row.l2_ways)
        return first, second


def _spread(room: int, count: int) -> list[int]:
    """Where `count` stretches begin that leave `room`, with as much of it before the first as after the last."""
    return [room * (2 * i + 1) // (2 * count) for i in range(count)]
