# SPDX-License-Identifier: Apache-2.0
"""Tiles of a matmul on a GPU, as data, and the cost model that chooses one for a shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import NamedTuple

from ....tables.targets import Row
from ....target import Limits
from ...core.plans import Price
from ..occupancy import FLOAT_BYTES, VECTOR, WARP, Processor, WorkGroupTile, fits
from .group_order import bands, traffic

_WRITTEN_OUT = 1024  # multiplications in the source of a kernel: more of them hide more latency, and compile longer
_TERMS = 16  # whose multiplications are written out in any case
_SPLIT_MARGIN = 1.02  # a split also needs memory for its sums
_MOST_RESULTS = 64  # of a thread, where compilers are not known to read a vector of shared memory at once
_OVERLAP = 0.5  # of what takes second longest, as far as it adds to what takes longest
_MOST_THREADS, _MOST_SHARED = 256, 32 * 1024  # of a group: candidates with more were never the fastest
GRAPH_LAUNCH = 5000.0  # cycles of a second kernel in a CUDA graph
_LIMITS = Limits(shared_bytes=_MOST_SHARED, shared_vector=VECTOR, launch_cycles=GRAPH_LAUNCH)
_PROCESSOR = Processor()
_ENOUGH = 4  # groups for each processor: a split brings nothing to a product that has them


@dataclass(frozen=True)
class GpuTile(WorkGroupTile):
    """How a group of threads computes its part of a product; `depth` is of all slices together.

    Attributes
    ----------
    splits : int
        Groups among which the terms of one tile are divided; above 1, a second kernel adds their sums.
    slices : int
        Parts into which the group divides the terms that it holds, each with threads of its own for all results; their
        sums are added in shared memory. More threads hide more latency where a product has few groups.
    unroll : int
        Terms whose multiplications are written out; it divides those of a slice.
    band : int
        Tiles along the columns of a band (`gpu_group_order`); 0 for all of them.
    """

    splits: int = 1
    slices: int = 1
    unroll: int = 8
    band: int = 0

    @property
    def slice_depth(self) -> int:
        """Terms that a slice takes of those in shared memory."""
        return self.depth // self.slices

    @property
    def registers(self) -> int:
        """Registers of a thread, with what nvcc adds for addresses where there are enough."""
        return self.values + 40


@dataclass(frozen=True)
class GpuMatmulParams:
    """What the rule for matmuls may know of a GPU; the numbers are those of a large one.

    Attributes
    ----------
    limits : Limits
        Those of the target, as far as the candidates go.
    processor : Processor
    cached_bytes : int
        The last cache.
    memory_bytes_per_cycle : float
        Between it and memory; infinite where traffic with memory is not to be looked at.
    shared_cycles : float
        Cycles that a processor takes for one vector load from shared memory by 32 threads.
    round_latency : float
        Cycles per tile of terms that nothing but other threads can hide.
    tiles : tuple of (rows, columns, thread rows, thread columns)
        Candidates.
    depths, splits, slices : tuple of int
        Candidates.
    """

    limits: Limits = _LIMITS
    processor: Processor = _PROCESSOR
    cached_bytes: int = 50 * 1024 * 1024
    memory_bytes_per_cycle: float = math.inf
    shared_cycles: float = 3.77
    round_latency: float = 232.0
    tiles: tuple[tuple[int, int, int, int], ...] = (
        (128, 128, 8, 16),
        (64, 128, 8, 16),
        (128, 128, 8, 8),
        (128, 64, 8, 8),
        (64, 128, 8, 8),
        (128, 64, 8, 4),
        (64, 64, 8, 8),
        (64, 64, 8, 4),
        (64, 64, 4, 4),
        (56, 64, 8, 4),
        (32, 64, 4, 8),
        (64, 32, 8, 4),
        (32, 64, 4, 4),
        (40, 32, 4, 4),
        (32, 32, 4, 4),
        (16, 64, 4, 4),
        (16, 32, 4, 2),
    )
    depths: tuple[int, ...] = (16, 32)
    splits: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    slices: tuple[int, ...] = (1, 2, 4, 8)

    @classmethod
    def of(cls, limits: Limits) -> GpuMatmulParams:
        """What a group may have is the target's, and where it names a device, also the memories behind it."""
        sizes = cls(limits.at_most(_MOST_THREADS, _MOST_SHARED))
        return sizes if limits.device is None else sizes._on(limits.device)

    def _on(self, device: Row) -> GpuMatmulParams:
        per_second = device.peak / (device.cores * self.processor.lanes)  # cycles, one multiplication in each lane
        return replace(
            self,
            processor=replace(self.processor, shared_bytes=device.local_bytes),
            cached_bytes=device.l2_bytes,
            memory_bytes_per_cycle=device.bandwidth / per_second,
        )

    def in_texels(self) -> GpuMatmulParams:
        """The same with tiles whose threads have whole vectors of columns."""
        return replace(self, tiles=tuple(tile for tile in self.tiles if tile[3] % VECTOR == 0))


def candidates(depth: int, params: GpuMatmulParams) -> list[GpuTile]:
    """Every tile that a group may have, for sums of `depth` terms."""
    found = []
    choices = product(params.tiles, params.depths, params.splits, params.slices)
    for (rows, columns, down, across), step, splits, slices in choices:
        unroll = min(step // slices, max(_WRITTEN_OUT // (down * across), _TERMS))
        tile = GpuTile(rows, columns, step, down, across, splits, slices, unroll)
        deep = splits == 1 or depth >= 128 * splits
        able = params.limits.shared_vector > 1 or down * across <= _MOST_RESULTS
        if deep and able and tile.threads % WARP == 0 and fits(tile, params.limits):
            found.append(tile)
    return found


def cycles(
    tile: GpuTile,
    batch: int,
    rows: int,
    columns: int,
    depth: int,
    params: GpuMatmulParams,
    memory: float | None = None,
) -> float:
    """Estimated time of a product: what its busiest processor computes, loads and waits for.

    Parameters
    ----------
    memory : float, optional
        The `memory_cycles` of the same product, where they are known.
    """
    memory = memory_cycles(tile, batch, rows, columns, depth, params) if memory is None else memory
    return _times(tile, batch, rows, columns, depth, params, memory).cycles


def price(tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> Price:
    """`cycles` by what they are spent on."""
    memory = memory_cycles(tile, batch, rows, columns, depth, params)
    times = _times(tile, batch, rows, columns, depth, params, memory)
    terms = {
        "multiply-adds": times.work * times.multiply,
        "loads from shared memory": times.work * times.share,
        "operands from the last cache": times.work * times.fetch,
        "what a thread waits for": times.waiting,
        "memory": times.memory,
        "adding parts": times.adding,
    }
    how = (
        "the first three overlap, and so do what they come to, waiting and memory: the longest counts, and half of the "
        "second; then parts are added"
    )
    return Price(times.cycles, terms, how)


class _Times(NamedTuple):
    """Cycles of the busiest processor.

    Attributes
    ----------
    work : float
        Terms of all its groups, each of which takes `multiply`, `share` and `fetch`.
    multiply, share, fetch : float
        Multiply-adds, loads from shared memory, and bringing operands there.
    waiting, memory, adding : float
        What threads wait for, what memory takes, and adding parts.
    """

    work: float
    multiply: float
    share: float
    fetch: float
    waiting: float
    memory: float
    adding: float

    @property
    def cycles(self) -> float:
        """Until all is done."""
        busy = self.work * _overlapping(self.multiply, self.share, self.fetch)
        return _overlapping(busy, self.waiting, self.memory) + self.adding


def _times(
    tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams, memory: float
) -> _Times:
    groups = batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.splits
    terms = -(-depth // (tile.depth * tile.splits)) * tile.depth
    mine = -(-groups // params.limits.processors)
    at_once = max(1, min(mine, params.processor.resident(tile.threads, tile.shared_bytes, tile.registers)))
    warps = tile.slice_threads / WARP  # of which each slice has as many, with a part of the terms
    vectors = -(-tile.thread_rows // VECTOR) + -(-tile.thread_columns // VECTOR)
    multiply = warps * (tile.thread_rows * tile.thread_columns + vectors + 2) * WARP / params.processor.lanes
    share = warps * vectors * params.shared_cycles
    fetch = FLOAT_BYTES * (tile.rows + tile.columns) / params.processor.bytes_per_cycle
    results = tile.thread_rows * tile.thread_columns
    alone = terms / tile.slices * results + terms / tile.depth * params.round_latency
    waiting = -(-mine // at_once) * (alone + (tile.slices - 1) * (2 * results + params.round_latency))
    # the sums of the parts are written, read again and finished by a kernel of its own
    adding = 0.0
    if tile.splits > 1:
        moved = FLOAT_BYTES * batch * rows * columns * (2 * tile.splits)
        adding = params.limits.launch_cycles + moved / (params.processor.bytes_per_cycle * params.limits.processors)
    return _Times(mine * terms, multiply, share, fetch, waiting, memory, adding)


def _overlapping(*cycles: float) -> float:
    """Cycles of what goes on at the same time, and holds each other up."""
    *_, second, first = sorted(cycles)
    return first + _OVERLAP * second


def memory_cycles(tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> float:
    """Cycles that memory takes for operands, results and sums of parts."""
    if math.isinf(params.memory_bytes_per_cycle):
        return 0.0
    down, across = -(-rows // tile.rows), -(-columns // tile.columns)
    height, width, terms = rows / down, columns / across, depth / tile.splits
    # whole bytes: sums of them are the same in every order
    sizes = tuple(round(FLOAT_BYTES * each) for each in (height * terms, width * terms, height * width))
    band = min(tile.band or across, across)
    moved = tile.splits * traffic(down, across, band, sizes, params.limits.processors, params.cached_bytes)
    if tile.splits > 1:
        moved += FLOAT_BYTES * rows * columns * (tile.splits + 1)
    return batch * moved / params.memory_bytes_per_cycle


@cache
def best_gpu_tile(batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> GpuTile | None:
    """The cheapest tile for `batch` products of `rows` x `depth` and `depth` x `columns`; None if none fits."""

    def order(tile: GpuTile) -> tuple:
        # equal cost: less traffic with memory first, then whole tiles of terms, then the larger tile
        memory = memory_cycles(tile, batch, rows, columns, depth, params)
        cost = cycles(tile, batch, rows, columns, depth, params, memory) * (1 if tile.splits == 1 else _SPLIT_MARGIN)
        return cost, memory, depth % tile.depth > 0, -tile.rows * tile.columns

    tiles = (each for tile in candidates(depth, params) for each in _in_bands(tile, batch, rows, columns, params))
    return min(tiles, key=order, default=None)


def _in_bands(tile: GpuTile, batch: int, rows: int, columns: int, params: GpuMatmulParams) -> list[GpuTile]:
    """The tile in each order of groups that is worth a try; split only where groups are few."""
    if math.isinf(params.memory_bytes_per_cycle):
        return [tile]
    across = -(-columns // tile.columns)
    if tile.splits > 1 and batch * -(-rows // tile.rows) * across >= _ENOUGH * params.limits.processors:
        return []
    return [tile, *(replace(tile, band=band) for band in bands(across))]
