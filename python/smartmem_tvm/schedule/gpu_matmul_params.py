# SPDX-License-Identifier: Apache-2.0
"""Tiles of a matmul on a GPU, as data, and the cost model that chooses one for a shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from ..tables.targets import Row
from .gpu_group_order import bands, traffic
from .gpu_launch import GpuParams

_FLOAT_BYTES = 4
VECTOR = 4  # floats that one instruction moves
_WRITTEN_OUT = 1024  # multiplications in the source of a kernel: more of them hide more latency, and compile longer
_SPLIT_MARGIN = 1.3  # a split, which also needs memory for its sums, has to win clearly
_ENOUGH = 4  # groups for each processor: a split brings nothing to a product that has them


@dataclass(frozen=True)
class GpuTile:
    """How a group of threads computes its part of a product.

    Attributes
    ----------
    rows, columns : int
        Results of one group.
    depth : int
        Terms that the group holds in shared memory at a time.
    thread_rows, thread_columns : int
        Results that each thread keeps in registers.
    splits : int
        Groups among which the terms of one tile are divided; above 1, a second kernel adds their sums.
    unroll : int
        Terms whose multiplications are written out; it divides `depth`.
    band : int
        Tiles along the columns of a band (`gpu_group_order`); 0 for all of them.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    splits: int = 1
    unroll: int = 8
    band: int = 0

    @property
    def threads_down(self) -> int:
        """Threads along the rows."""
        return self.rows // self.thread_rows

    @property
    def threads_across(self) -> int:
        """Threads along the columns."""
        return self.columns // self.thread_columns

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.threads_down * self.threads_across

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a group, with the padding of a transposed tile."""
        return _FLOAT_BYTES * self.depth * (self.rows + self.columns + 2 * VECTOR)

    @property
    def registers(self) -> int:
        """Registers of a thread: sums, operands of a step, the next tile on its way, addresses."""
        staged = -(-self.depth * (self.rows + self.columns) // self.threads)
        return self.thread_rows * self.thread_columns + self.thread_rows + self.thread_columns + staged + 40


@dataclass(frozen=True)
class GpuMatmulParams:
    """What the rule for matmuls may know of a GPU; the numbers are those of a large one.

    Attributes
    ----------
    processors : int
        Units that run groups of threads independently of each other.
    threads, groups, shared_bytes, registers : int
        What fits on one of them at a time.
    group_threads, group_shared_bytes : int
        Most threads, and most shared memory, of one group.
    lanes : int
        Multiplications with addition that a processor starts in each cycle.
    bytes_per_cycle : float
        From the last cache to one processor while all of them read.
    cached_bytes : int
        The last cache.
    memory_bytes_per_cycle : float
        Between it and memory; infinite where traffic with memory is not to be looked at.
    shared_cycles : float
        Cycles that a processor takes for one vector load from shared memory by 32 threads.
    step_latency, round_latency, launch : float
        Cycles that nothing but other threads can hide: per term, per tile of terms, and those of a second kernel.
    tiles : tuple of (rows, columns, thread rows, thread columns)
        Candidates.
    depths, splits : tuple of int
        Candidates.
    """

    processors: int = 132
    threads: int = 2048
    groups: int = 32
    shared_bytes: int = 200 * 1024
    registers: int = 65536
    group_threads: int = 256
    group_shared_bytes: int = 32 * 1024
    lanes: int = 128
    bytes_per_cycle: float = 40.0
    cached_bytes: int = 50 * 1024 * 1024
    memory_bytes_per_cycle: float = math.inf
    shared_cycles: float = 3.38
    step_latency: float = 31.0
    round_latency: float = 100.0
    launch: float = 10000.0
    tiles: tuple[tuple[int, int, int, int], ...] = (
        (128, 128, 8, 8),
        (128, 64, 8, 8),
        (64, 128, 8, 8),
        (128, 64, 8, 4),
        (64, 64, 8, 8),
        (64, 64, 8, 4),
        (64, 64, 4, 4),
        (32, 64, 4, 8),
        (64, 32, 8, 4),
        (32, 64, 4, 4),
        (32, 32, 4, 4),
        (16, 64, 4, 4),
        (16, 32, 4, 2),
    )
    depths: tuple[int, ...] = (16, 32)
    splits: tuple[int, ...] = (1, 2, 3, 4, 6, 8)

    @classmethod
    def of(cls, params: GpuParams) -> GpuMatmulParams:
        """What a group may have is the target's, and where it names a device, also the memories behind it."""
        sizes = cls(
            group_threads=min(params.most_threads, cls.group_threads),
            group_shared_bytes=min(params.shared_bytes, cls.group_shared_bytes),
        )
        return sizes if params.device is None else sizes._on(params.device)

    def _on(self, device: Row) -> GpuMatmulParams:
        per_second = device.peak / (device.cores * self.lanes)  # cycles, each one multiplication in each lane
        return replace(
            self,
            processors=device.cores,
            shared_bytes=device.local_bytes,
            cached_bytes=device.l2_bytes,
            memory_bytes_per_cycle=device.bandwidth / per_second,
        )

    def in_texels(self) -> GpuMatmulParams:
        """The same with tiles whose threads have whole vectors of columns."""
        return replace(self, tiles=tuple(tile for tile in self.tiles if tile[3] % VECTOR == 0))


def candidates(depth: int, params: GpuMatmulParams) -> list[GpuTile]:
    """Every tile that a group may have, for sums of `depth` terms."""
    found = []
    for (rows, columns, down, across), step, splits in product(params.tiles, params.depths, params.splits):
        tile = GpuTile(rows, columns, step, down, across, splits, min(step, _WRITTEN_OUT // (down * across)))
        fits = tile.threads <= params.group_threads and tile.shared_bytes <= params.group_shared_bytes
        # what gives a thread much to do is for products that are large without a split
        if fits and (splits == 1 or (depth >= 128 * splits and down * across <= 32)):
            found.append(tile)
    return found


def cycles(tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> float:
    """Estimated time of a product: what its busiest processor computes, loads and waits for."""
    groups = batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.splits
    terms = -(-depth // (tile.depth * tile.splits)) * tile.depth
    mine = -(-groups // params.processors)
    at_once = max(1, min(mine, _resident(tile, params)))
    warps = tile.threads / 32
    vectors = -(-tile.thread_rows // VECTOR) + -(-tile.thread_columns // VECTOR)
    multiply = warps * (tile.thread_rows * tile.thread_columns + vectors + 2) * 32 / params.lanes
    share = warps * vectors * params.shared_cycles
    fetch = _FLOAT_BYTES * (tile.rows + tile.columns) / params.bytes_per_cycle
    busy = mine * terms * max(multiply, share, fetch)
    alone = tile.thread_rows * tile.thread_columns + params.step_latency + params.round_latency / tile.depth
    waiting = -(-mine // at_once) * terms * alone
    # the sums of the parts are written, read again and finished by a kernel of its own
    adding = 0.0
    if tile.splits > 1:
        moved = _FLOAT_BYTES * batch * rows * columns * (2 * tile.splits)
        adding = params.launch + moved / (params.bytes_per_cycle * params.processors)
    *_, second, first = sorted((busy, waiting, _memory(tile, batch, rows, columns, depth, params)))
    return first + 0.15 * second + adding


def _memory(tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> float:
    """Cycles that memory takes for operands, results and sums of parts."""
    if math.isinf(params.memory_bytes_per_cycle):
        return 0.0
    down, across = -(-rows // tile.rows), -(-columns // tile.columns)
    height, width, terms = rows / down, columns / across, depth / tile.splits
    # whole bytes: sums of them are the same in every order
    sizes = tuple(round(_FLOAT_BYTES * each) for each in (height * terms, width * terms, height * width))
    band = min(tile.band or across, across)
    moved = tile.splits * traffic(down, across, band, sizes, params.processors, params.cached_bytes)
    if tile.splits > 1:
        moved += _FLOAT_BYTES * rows * columns * (tile.splits + 1)
    return batch * moved / params.memory_bytes_per_cycle


def _resident(tile: GpuTile, params: GpuMatmulParams) -> int:
    return min(
        params.groups,
        params.threads // tile.threads,
        params.shared_bytes // tile.shared_bytes,
        params.registers // (tile.registers * tile.threads),
    )


@cache
def best_gpu_tile(batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> GpuTile:
    """The cheapest tile for `batch` products of `rows` x `depth` and `depth` x `columns`."""
    # equal cost: less traffic with memory first, then whole tiles of terms, then the larger tile
    return min(
        (each for tile in candidates(depth, params) for each in _in_bands(tile, batch, rows, columns, params)),
        key=lambda t: (
            cycles(t, batch, rows, columns, depth, params) * (1 if t.splits == 1 else _SPLIT_MARGIN),
            _memory(t, batch, rows, columns, depth, params),
            depth % t.depth > 0,
            -t.rows * t.columns,
        ),
    )


def _in_bands(tile: GpuTile, batch: int, rows: int, columns: int, params: GpuMatmulParams) -> list[GpuTile]:
    """The tile in each order of groups that is worth a try; split only where groups are few."""
    if math.isinf(params.memory_bytes_per_cycle):
        return [tile]
    across = -(-columns // tile.columns)
    if tile.splits > 1 and batch * -(-rows // tile.rows) * across >= _ENOUGH * params.processors:
        return []
    return [tile, *(replace(tile, band=band) for band in bands(across))]
