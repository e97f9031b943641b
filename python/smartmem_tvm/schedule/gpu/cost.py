# SPDX-License-Identifier: Apache-2.0
"""The model of time of GPU kernels: a rule describes the work of a tile, and this module makes cycles of it.

A kernel is thread blocks that its processors share evenly. The one with the most takes as many at once as it has room
for (occupancy), in waves:

    time = begin + waves * wave                       until the first product begins, and to start more thread blocks
         + the longest of                             and a share (`BlockRates.overlap`) of the second longest
             busy                                     its units' work for all of its thread blocks
             waves * the waits of a thread block      latency, which only other thread blocks at the same time hide
             bytes / rate                             what all processors load from the last-level cache, or memory
         + results + a second kernel that adds up partial sums

    busy = for each part of a thread block's work:    turns * (longest unit + a share of the second longest unit)

The amounts are a rule's (`BlockKernel`), the figures a device's, as they were fitted for a family of kernels
(`BlockRates`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ...target import Limits
from ..core.plans import Price
from .machine import LAST_LEVEL_RATE, SHARED_VECTOR, WARP, Processor


class BlockWork(NamedTuple):
    """A part of a thread block's work: amounts of one turn, by the unit of a processor that does them.

    Attributes
    ----------
    turns : float
        How often a thread block does it.
    instructions : float
        Instructions of all warps, which share the schedulers evenly.
    vectors : float
        Vector loads from shared memory by a warp, of all warps.
    loaded : float
        Bytes from the last-level cache.
    lines : float
        Lines of the first-level cache that the loads and stores of a warp touch, of all warps.
    measured : float
        Cycles of the processor as a whole, where a part was measured and is not taken apart.
    tensor, rest : float
        Cycles of each warp on its scheduler: of matrix instructions, and of all others.
    overlap : float or None
        Share of the second longest unit that adds to the longest; None if only the other thread blocks of a wave fill
        the gaps.
    """

    turns: float = 1
    instructions: float = 0
    vectors: float = 0
    loaded: float = 0
    lines: float = 0
    measured: float = 0
    tensor: float = 0
    rest: float = 0
    overlap: float | None = 0


class Wait(NamedTuple):
    """A latency of a thread block: how often it occurs, and its cycles."""

    times: float
    cycles: float


class BlockKernel(NamedTuple):
    """A kernel as data.

    Attributes
    ----------
    blocks : int
        Thread blocks.
    threads, shared_bytes, registers : int
        The share of a processor that a thread block takes: threads, shared memory, and registers of each thread.
    work : tuple of BlockWork
        The parts of a thread block's work, one after the other.
    waits : tuple of Wait
        Its latencies.
    cached : float
        Bytes that all thread blocks load from the last-level cache while they compute; 0 if they are in `work`.
    memory : float
        Bytes between the last-level cache and memory.
    results : float
        Results of a thread block that it writes after its sums are complete, with those of its slices.
    sums : float
        Bytes of partial sums that a second kernel adds up, written and read; 0 without one.
    """

    blocks: int
    threads: int
    shared_bytes: int = 0
    registers: int = 0
    work: tuple[BlockWork, ...] = ()
    waits: tuple[Wait, ...] = ()
    cached: float = 0
    memory: float = 0
    results: float = 0
    sums: float = 0


@dataclass(frozen=True)
class BlockRates:
    """The figures of a device, as fitted for a family of kernels.

    Attributes
    ----------
    vector : float
        Cycles of a processor for a vector load from shared memory by a warp.
    last_level : float
        Bytes per cycle from the last-level cache for one processor, while all read.
    memory : float
        Bytes per cycle of the whole device between that cache and memory; infinite if memory traffic is ignored.
    by_warp : float
        Most instructions per cycle of one warp.
    overlap : float
        Share of the second longest of work, waits and traffic that adds to the longest.
    whole_waves : bool
        Whether the thread blocks of a wave end together; otherwise a wave may be a part of one.
    begin, wave, result, second : float
        Cycles until the first product begins, for each wave, for a result, and of a second kernel beside its traffic.
    """

    vector: float = SHARED_VECTOR
    last_level: float = LAST_LEVEL_RATE
    memory: float = math.inf
    by_warp: float = math.inf
    overlap: float = 0.0
    whole_waves: bool = True
    begin: float = 0.0
    wave: float = 0.0
    result: float = 0.0
    second: float = 0.0


_LIMITS, _PROCESSOR, _RATES = Limits(), Processor(), BlockRates()


@dataclass(frozen=True)
class TileParams:
    """The base of the parameters of rules that choose tiles by their time; the defaults are those of a large GPU.

    Attributes
    ----------
    limits : Limits
        Those of the target, as far as the candidates go.
    processor : Processor
    rates : BlockRates
    """

    limits: Limits = _LIMITS
    processor: Processor = _PROCESSOR
    rates: BlockRates = _RATES


class _Load(NamedTuple):
    """The processor with the most thread blocks.

    Attributes
    ----------
    mine, at_once : int
        Its thread blocks, and those of a wave.
    waves : float
    issued : float
        Instructions per cycle that its schedulers issue.
    warps : float
        Warps of the scheduler with the most, for each thread block.
    """

    mine: int
    at_once: int
    waves: float
    issued: float
    warps: float


class _Times(NamedTuple):
    """Cycles of a kernel; the longest of `busy`, `waiting`, `cached` and `memory` counts, all others add up."""

    begin: float
    waves: float
    busy: float
    waiting: float
    cached: float
    memory: float
    results: float
    second: float

    def total(self, overlap: float) -> float:
        """Return their sum."""
        longest = _overlapping((self.busy, self.waiting, self.cached, self.memory), overlap)
        return self.begin + self.waves + longest + self.results + self.second


def cycles(kernel: BlockKernel, device: TileParams) -> float:
    """Return the cycles that a kernel takes."""
    return _times(kernel, device, _load(kernel, device)).total(device.rates.overlap)


def price(kernel: BlockKernel, device: TileParams) -> Price:
    """Return the same, broken down into terms; those that are zero are left out."""
    load, overlap = _load(kernel, device), device.rates.overlap
    times, units = _times(kernel, device, load), dict.fromkeys(_UNITS, 0.0)
    for work in kernel.work:
        for name, unit in zip(_UNITS, _units(work, load, device.rates), strict=True):
            units[name] += load.mine * work.turns * unit
    units["operands from the last cache"] += times.cached
    terms = {
        "until the first product begins": times.begin,
        "thread blocks after thread blocks": times.waves,
        **units,
        "what a thread block waits for": times.waiting,
        "memory": times.memory,
        "results": times.results,
        "adding parts": times.second,
    }
    how = (
        "sum, in which units overlap, and so do their work, waits and traffic: the longest of these counts"
        f"{f', and {overlap:.0%} of the second' if overlap else ''}"
    )
    return Price(times.total(overlap), {name: value for name, value in terms.items() if value}, how)


def turn_alone(work: BlockWork, device: TileParams) -> float:
    """Return the cycles of one turn of some work by one thread block that has a processor to itself."""
    return _turn(work, _Load(1, 1, 1, device.processor.lanes / WARP, 1), device.rates)


def _load(kernel: BlockKernel, device: TileParams) -> _Load:
    mine = -(-kernel.blocks // device.limits.processors)
    at_once = device.processor.resident(kernel.threads, kernel.shared_bytes, kernel.registers)
    at_once = max(1, min(mine, at_once))
    waves = -(-mine // at_once) if device.rates.whole_waves else mine / at_once
    warps, schedulers = kernel.threads / WARP, device.processor.lanes / WARP
    issued = min(schedulers, device.rates.by_warp * warps * at_once)
    return _Load(mine, at_once, waves, issued, math.ceil(mine * warps / schedulers) / mine)


def _times(kernel: BlockKernel, device: TileParams, load: _Load) -> _Times:
    rates, processors = device.rates, device.limits.processors
    busy = waits = second = 0.0
    for work in kernel.work:
        busy += load.mine * work.turns * _turn(work, load, rates)
    for times, latency in kernel.waits:
        waits += times * latency
    if kernel.sums:
        second = rates.second + kernel.sums / (rates.last_level * processors)
    cached, memory = kernel.cached / (rates.last_level * processors), kernel.memory / rates.memory
    results = load.mine * kernel.results * rates.result
    return _Times(rates.begin, load.waves * rates.wave, busy, load.waves * waits, cached, memory, results, second)


_UNITS = (
    "instructions",
    "loads from shared memory",
    "operands from the last cache",
    "lines of the first cache",
    "work as measured",
    "matrix instructions",
    "other instructions of their warps",
)
"""Names of the terms of `_units`, in its order."""


def _units(work: BlockWork, load: _Load, rates: BlockRates) -> tuple[float, ...]:
    """Return the cycles of each unit for one turn of a thread block."""
    return (
        work.instructions / load.issued,
        work.vectors * rates.vector,
        work.loaded / rates.last_level,
        work.lines,
        work.measured,
        load.warps * work.tensor,
        load.warps * work.rest,
    )


def _turn(work: BlockWork, load: _Load, rates: BlockRates) -> float:
    return _overlapping(_units(work, load, rates), 1 / load.at_once if work.overlap is None else work.overlap)


def _overlapping(cycles: tuple[float, ...], overlap: float) -> float:
    """Return the cycles of activities that overlap, perfectly if the share of the second longest is zero."""
    if not overlap:
        return max(cycles)
    *_, second, first = sorted(cycles)
    return first + overlap * second
