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
from .. import machine
from ..gemm.block_order import bands, traffic
from ..machine import FLOAT_BYTES, GRAPH_LAUNCH, VECTOR, WARP, Processor
from ..occupancy import BlockTile, fits

# Unrolled multiplications, at most. Chosen: more of them hide more latency, and take longer to compile.
_WRITTEN_OUT = 1024
_TERMS = 16  # terms that are unrolled in any case. Chosen: the smallest step of the candidates
# Times the cycles of a split product. Chosen: it also needs memory for its partial sums.
_SPLIT_MARGIN = 1.02
# Results of a thread on targets whose compiler may split vector loads from shared memory. Chosen: larger tiles were
# added for CUDA, and measured there only (2026-11-27).
_MOST_RESULTS = 64
# Share of the second longest time that adds to the longest, in cycles: fitted to benchmarks/float_tiles.json (H200,
# 2026-11-27).
_OVERLAP = 0.5
# Threads and bytes of a thread block. Measured: larger ones were never the fastest (2026-11-22); the times were not
# kept.
_MOST_THREADS, _MOST_SHARED = 256, 32 * 1024
_LIMITS = Limits(shared_bytes=_MOST_SHARED, shared_vector=VECTOR, launch_cycles=GRAPH_LAUNCH)
_PROCESSOR = Processor()
_ENOUGH = 4  # thread blocks per processor from which on a split is not tried. Chosen: it brings nothing in the model


@dataclass(frozen=True)
class GpuTile(BlockTile):
    """How a thread block computes its part of a product; `depth` is of all slices together.

    Attributes
    ----------
    splits : int
        Split-K factor: thread blocks that share the terms of one tile; above 1, a second kernel adds their sums.
    slices : int
        Parts into which a thread block divides the terms in shared memory, each with threads of its own for all
        results; their sums are added in shared memory. More threads hide more latency if thread blocks are few.
    unroll : int
        Terms that are unrolled; it divides those of a slice.
    band : int
        Tiles along the columns of a band (`block_order`); 0 for all of them.
    """

    splits: int = 1
    slices: int = 1
    unroll: int = 8
    band: int = 0

    @property
    def slice_depth(self) -> int:
        """Terms in shared memory that a slice takes."""
        return self.depth // self.slices

    @property
    def registers(self) -> int:
        """Registers of a thread, with the 40 that nvcc takes for addresses if there are enough."""
        return self.values + 40


@dataclass(frozen=True)
class GpuMatmulParams:
    """Properties of a GPU that the rule for matmuls uses; the default numbers are those of a large one.

    Attributes
    ----------
    limits : Limits
        Those of the target, as far as the candidates go.
    processor : Processor
    cached_bytes : int
        Bytes of the last-level cache.
    memory_bytes_per_cycle : float
        Throughput between it and memory; infinite if the model ignores memory traffic.
    shared_cycles : float
        Cycles that a processor takes for one vector load from shared memory by a warp (32 threads).
    round_latency : float
        Latency in cycles per tile of terms that only other threads can hide.
    tiles : tuple of (rows, columns, thread rows, thread columns)
        Candidates.
    depths, splits, slices : tuple of int
        Candidates.
    """

    limits: Limits = _LIMITS
    processor: Processor = _PROCESSOR
    cached_bytes: int = machine.LAST_LEVEL_BYTES
    memory_bytes_per_cycle: float = math.inf
    shared_cycles: float = machine.SHARED_VECTOR
    round_latency: float = machine.ROUND_LATENCY
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
        """Return the parameters with the limits of a target, and with its caches and memory if it names a device."""
        sizes = cls(limits.at_most(_MOST_THREADS, _MOST_SHARED))
        return sizes if limits.device is None else sizes._on(limits.device)

    def _on(self, device: Row) -> GpuMatmulParams:
        per_second = device.peak / (device.cores * self.processor.lanes)  # Hz: one multiplication per lane and cycle
        return replace(
            self,
            processor=replace(self.processor, shared_bytes=device.local_bytes),
            cached_bytes=device.l2_bytes,
            memory_bytes_per_cycle=device.bandwidth / per_second,
        )

    def in_texels(self) -> GpuMatmulParams:
        """Return the same with only those tiles whose threads have whole vectors of columns."""
        return replace(self, tiles=tuple(tile for tile in self.tiles if tile[3] % VECTOR == 0))


def candidates(depth: int, params: GpuMatmulParams) -> list[GpuTile]:
    """Return every tile within the limits of a thread block, for sums of `depth` terms."""
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
    """Estimate the cycles of a product: those that its busiest processor computes, loads and waits.

    Parameters
    ----------
    memory : float, optional
        The `memory_cycles` of the same product, where they are known.
    """
    memory = memory_cycles(tile, batch, rows, columns, depth, params) if memory is None else memory
    return _times(tile, batch, rows, columns, depth, params, memory).cycles


def price(tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> Price:
    """Return `cycles`, broken down into terms."""
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


class _MatmulCycles(NamedTuple):
    """Cycles of the busiest processor.

    Attributes
    ----------
    work : float
        Number of terms of all its thread blocks, each of which takes `multiply`, `share` and `fetch` cycles.
    multiply, share, fetch : float
        Cycles per term for multiply-adds, for loads from shared memory, and for copying operands there.
    waiting, memory, adding : float
        Cycles of latency, of memory traffic, and of adding partial sums.
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
        """The total."""
        busy = self.work * _overlapping(self.multiply, self.share, self.fetch)
        return _overlapping(busy, self.waiting, self.memory) + self.adding


def _times(
    tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams, memory: float
) -> _MatmulCycles:
    blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.splits
    terms = -(-depth // (tile.depth * tile.splits)) * tile.depth
    mine = -(-blocks // params.limits.processors)
    at_once = max(1, min(mine, params.processor.resident(tile.threads, tile.shared_bytes, tile.registers)))
    warps = tile.slice_threads / WARP  # of one slice; every slice has as many, with a part of the terms
    vectors = -(-tile.thread_rows // VECTOR) + -(-tile.thread_columns // VECTOR)
    multiply = warps * (tile.thread_rows * tile.thread_columns + vectors + 2) * WARP / params.processor.lanes
    share = warps * vectors * params.shared_cycles
    fetch = FLOAT_BYTES * (tile.rows + tile.columns) / params.processor.bytes_per_cycle
    results = tile.thread_rows * tile.thread_columns
    alone = terms / tile.slices * results + terms / tile.depth * params.round_latency
    waiting = -(-mine // at_once) * (alone + (tile.slices - 1) * (2 * results + params.round_latency))
    # A second kernel reads the partial sums that the first one has written, and applies the epilogue.
    adding = 0.0
    if tile.splits > 1:
        moved = FLOAT_BYTES * batch * rows * columns * (2 * tile.splits)
        adding = params.limits.launch_cycles + moved / (params.processor.bytes_per_cycle * params.limits.processors)
    return _MatmulCycles(mine * terms, multiply, share, fetch, waiting, memory, adding)


def _overlapping(*cycles: float) -> float:
    """Return the cycles of activities that overlap, but not perfectly."""
    *_, second, first = sorted(cycles)
    return first + _OVERLAP * second


def memory_cycles(tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> float:
    """Estimate the cycles of memory traffic for operands, results and partial sums."""
    if math.isinf(params.memory_bytes_per_cycle):
        return 0.0
    down, across = -(-rows // tile.rows), -(-columns // tile.columns)
    height, width, terms = rows / down, columns / across, depth / tile.splits
    # Whole bytes: sums of integers do not depend on their order.
    sizes = tuple(round(FLOAT_BYTES * each) for each in (height * terms, width * terms, height * width))
    band = min(tile.band or across, across)
    moved = tile.splits * traffic(down, across, band, sizes, params.limits.processors, params.cached_bytes)
    if tile.splits > 1:
        moved += FLOAT_BYTES * rows * columns * (tile.splits + 1)
    return batch * moved / params.memory_bytes_per_cycle


@cache
def best_gpu_tile(batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> GpuTile | None:
    """Return the cheapest tile for `batch` products of `rows` x `depth` and `depth` x `columns`; None if none fits."""

    def order(tile: GpuTile) -> tuple:
        # At equal cost: less memory traffic first, then whole tiles of terms, then the larger tile.
        memory = memory_cycles(tile, batch, rows, columns, depth, params)
        cost = cycles(tile, batch, rows, columns, depth, params, memory) * (1 if tile.splits == 1 else _SPLIT_MARGIN)
        return cost, memory, depth % tile.depth > 0, -tile.rows * tile.columns

    tiles = (each for tile in candidates(depth, params) for each in _in_bands(tile, batch, rows, columns, params))
    return min(tiles, key=order, default=None)


def _in_bands(tile: GpuTile, batch: int, rows: int, columns: int, params: GpuMatmulParams) -> list[GpuTile]:
    """Return the tile with each band that is worth a try; none if it is split though thread blocks are many."""
    if math.isinf(params.memory_bytes_per_cycle):
        return [tile]
    across = -(-columns // tile.columns)
    if tile.splits > 1 and batch * -(-rows // tile.rows) * across >= _ENOUGH * params.limits.processors:
        return []
    return [tile, *(replace(tile, band=band) for band in bands(across))]
