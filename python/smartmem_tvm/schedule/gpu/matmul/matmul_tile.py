# SPDX-License-Identifier: Apache-2.0
"""Tiles of a matmul on a GPU, as data; the model of time (`cost`) chooses one by its description."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from ....tables.targets import Core, Row
from ....target import GRAPH_LAUNCH, Limits
from ...core.plans import Price
from .. import cost, machine
from ..cost import BlockKernel, BlockRates, BlockWork, TileParams, Wait
from ..gemm.block_order import bands, traffic
from ..machine import FLOAT_BYTES, HALF_BYTES, VECTOR, WARP, Processor
from ..occupancy import BlockTile, fits
from ..thread_numbers import ADDRESSES_GEMM, Held, gemm_ends, gemm_trip
from ..waves import allotted, most_registers, spills, waves

# Unrolled multiplications, at most. Chosen: more of them hide more latency, and take longer to compile.
_WRITTEN_OUT = 1024
_TERMS = 16  # terms that are unrolled in any case. Chosen: the smallest step of the candidates
# Terms that are unrolled on Adreno, at most. Chosen: with 32 of them tiles of 8 x 4 in float32 spilled on a 660.
_TERMS_ADRENO = 16
_LARGE_BLOCK = 256  # threads. Chosen: those of the largest thread blocks of the tiles below
# Times the cycles of a split product. Chosen: it also needs memory for its partial sums.
_SPLIT_MARGIN = 1.02
# Results of a thread on targets whose compiler may split vector loads from shared memory. Chosen: larger tiles were
# added for CUDA, and measured there only (2026-11-27).
_MOST_RESULTS = 64
# Share of the second longest time that adds to the longest, in cycles: fitted to benchmarks/float_tiles.json (H200,
# 2026-11-27).
_OVERLAP = 0.5
# Numbers of a thread for each element on its way to shared memory and each tensor of which it may come, for places in
# images. Chosen: with them no tile of the joined operands of YOLOv8n spilled on 660 and 740 (Mesa 26.2.6, 2026-11-28).
_CHOSEN = 2
# Threads and bytes of a thread block. Measured: larger ones were never the fastest (2026-11-22); the times were not
# kept.
_MOST_THREADS, _MOST_SHARED = 256, 32 * 1024
_LIMITS = Limits(shared_bytes=_MOST_SHARED, shared_vector=VECTOR, launch_cycles=GRAPH_LAUNCH)
_RATES = BlockRates(overlap=_OVERLAP, second=GRAPH_LAUNCH)
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

    @property
    def staged(self) -> int:
        """Elements that a thread has on their way to shared memory."""
        return -(-self.depth * (self.rows + self.columns) // self.threads)

    def numbers(self, halves: bool) -> int:
        """Return the numbers of four bytes that a thread holds at once on Adreno."""
        return Held(self.thread_rows, self.thread_columns, self.staged, halves, self.unroll).gemm

    def slots(self, rounds: int, halves: bool) -> float:
        """Return the slots of the arithmetic unit that a thread takes on Adreno, whose loop has `rounds` trips."""
        copied, terms, sides = -(-self.staged // VECTOR), self.slice_depth, (self.thread_rows, self.thread_columns)
        trip = gemm_trip(*sides, terms, copied, halves)
        twice = sides[0] * sides[1] * terms / 2 if halves else 0  # half of the slots, as halves go at twice the rate
        return rounds * (trip - twice) + gemm_ends(*sides)


@dataclass(frozen=True)
class GpuMatmulParams(TileParams):
    """Properties of a GPU that the rule for matmuls uses.

    Attributes
    ----------
    cached_bytes : int
        Bytes of the last-level cache.
    round_latency : float
        Latency in cycles per tile of terms that only other threads can hide.
    halves : bool
        Whether operands are float16; only `compiled_core` asks.
    short_sums : bool
        Whether an Adreno adds up the products of a tile of terms in float16, and these sums in float32 (`sums`).
    apart : (int, int)
        Tensors of which single elements of the left and of the right operand come, where each is chosen.
    finished : float
        Numbers of four bytes that each result needs at its end beside the sum, where results are stored one by one.
    tiles : tuple of (rows, columns, thread rows, thread columns)
        Candidates.
    depths, splits, slices : tuple of int
        Candidates.
    """

    limits: Limits = _LIMITS
    rates: BlockRates = _RATES
    cached_bytes: int = machine.LAST_LEVEL_BYTES
    round_latency: float = machine.ROUND_LATENCY
    halves: bool = False
    short_sums: bool = False
    apart: tuple[int, int] = (0, 0)
    finished: float = 0.0
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
        rates = replace(_RATES, second=limits.launch_cycles)
        sizes = cls(limits.at_most(_MOST_THREADS, _MOST_SHARED), rates=rates)
        return sizes if limits.device is None else sizes._on(limits.device)

    def _on(self, device: Row) -> GpuMatmulParams:
        per_second = device.peak / (device.cores * self.processor.lanes)  # Hz: one multiplication per lane and cycle
        return replace(
            self,
            processor=Processor.of(device),
            cached_bytes=device.l2_bytes,
            rates=replace(self.rates, memory=device.bandwidth / per_second),
        )

    @property
    def compiled_core(self) -> Core | None:
        """The core for which tiles are chosen by registers and instructions as Mesa's compiler has them; else None.

        It is that of an Adreno whose large thread blocks do not get all registers, as of a 660. On a 740, which has
        them, no tile of the plain model spilled, and ResNeXt-50 in halves would move 1.2x of the bytes (2026-11-28).
        """
        core = self.limits.adreno_core
        return core if core is not None and most_registers(core, _LARGE_BLOCK) < core.most else None

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of an operand."""
        return HALF_BYTES if self.halves else FLOAT_BYTES

    def of_type(self, factor: str) -> GpuMatmulParams:
        """Return the same for operands of a type."""
        if self.limits.adreno_core is None:
            return self
        halves = factor == "float16"
        return replace(self, halves=halves and self.compiled_core is not None, short_sums=halves)

    def choosing(self, apart: tuple[int, int], finished: float = 0.0) -> GpuMatmulParams:
        """Return the same for operands whose elements come from several tensors (`Operand.apart`), and `finished`."""
        return replace(self, apart=apart, finished=finished) if self.limits.adreno_core is not None else self

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
        if deep and able and tile.threads % WARP == 0 and fits(tile, params.limits) and not _spills(tile, params):
            found.append(tile)
    return found


def _spills(tile: GpuTile, params: GpuMatmulParams) -> bool:
    results, adreno = tile.thread_rows * tile.thread_columns, params.limits.adreno_core
    # Mesa's compiler begins the loads of all results before it stores the first one.
    at_end = round(results * (1 + params.finished)) + ADDRESSES_GEMM if params.finished else 0
    if adreno and spills(adreno, at_end, tile.threads):
        return True
    core = params.limits.adreno_core if any(params.apart) else params.compiled_core
    if core is None:
        return False
    elements = zip((tile.rows, tile.columns), params.apart, strict=True)
    chosen = sum(-(-tile.depth * size // tile.threads) * tensors for size, tensors in elements)
    numbers = tile.numbers(params.halves) + _CHOSEN * chosen
    return tile.unroll > _TERMS_ADRENO or spills(core, numbers, tile.threads)


def price(tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> Price:
    """Return the predicted time of a product, by its terms."""
    return cost.price(described(tile, batch, rows, columns, depth, params), params)


def described(
    tile: GpuTile,
    batch: int,
    rows: int,
    columns: int,
    depth: int,
    params: GpuMatmulParams,
    memory: float | None = None,
) -> BlockKernel:
    """Return a product as the work of a thread block.

    Parameters
    ----------
    memory : float, optional
        The `memory_bytes` of the same product, where they are known.
    """
    terms = -(-depth // (tile.depth * tile.splits)) * tile.depth
    warps = tile.slice_threads / WARP  # of one slice; every slice has as many, with a part of the terms
    vectors = -(-tile.thread_rows // VECTOR) + -(-tile.thread_columns // VECTOR)
    results = tile.thread_rows * tile.thread_columns
    instructions, registers = warps * (results + vectors + 2), tile.registers
    if params.compiled_core is not None:
        instructions = tile.threads * tile.slots(terms // tile.depth, params.halves) / terms / WARP
        registers = tile.numbers(params.halves)
    return BlockKernel(
        batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.splits,
        *(tile.threads, tile.shared_bytes * params.element_bytes // FLOAT_BYTES, registers),
        (
            BlockWork(
                terms,
                instructions=instructions,
                vectors=warps * vectors,
                loaded=params.element_bytes * (tile.rows + tile.columns),
                overlap=_OVERLAP,
            ),
        ),
        (
            Wait(terms / tile.slices, results),
            Wait(terms / tile.depth, params.round_latency),
            Wait(tile.slices - 1, 2 * results + params.round_latency),
        ),
        memory=memory_bytes(tile, batch, rows, columns, depth, params) if memory is None else memory,
        # A second kernel reads the partial sums that the first one has written, and applies the epilogue.
        sums=FLOAT_BYTES * batch * rows * columns * (2 * tile.splits) if tile.splits > 1 else 0,
    )


def memory_bytes(tile: GpuTile, batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> float:
    """Estimate the bytes of memory traffic for operands, results and partial sums; 0 where the model ignores them."""
    if math.isinf(params.rates.memory):
        return 0.0
    down, across = -(-rows // tile.rows), -(-columns // tile.columns)
    height, width, terms = rows / down, columns / across, depth / tile.splits
    # Whole bytes: sums of integers do not depend on their order.
    sizes = tuple(round(params.element_bytes * each) for each in (height * terms, width * terms, height * width))
    band = min(tile.band or across, across)
    moved = tile.splits * traffic(down, across, band, sizes, params.limits.processors, params.cached_bytes)
    if tile.splits > 1:
        moved += FLOAT_BYTES * rows * columns * (tile.splits + 1)
    return batch * moved


def deepened(tile: GpuTile, depth: int, params: GpuMatmulParams) -> GpuTile:
    """Return a tile with twice the terms in shared memory where an Adreno adds halves, and holds as many waves with it.

    Each tile of terms is widened and added to the float32 sums: 128 of 820 slots of a trip of 8 x 8 results and 16
    terms. Results, and so the traffic of the operands, stay the same.
    """
    core, deeper = params.limits.adreno_core, replace(tile, depth=2 * tile.depth)
    even = tile.slices == 1 and depth % (deeper.depth * tile.splits) == 0
    if core is None or not params.short_sums or not even or deeper.depth > max(params.depths):
        return tile
    if deeper.shared_bytes * HALF_BYTES // FLOAT_BYTES > params.limits.shared_bytes or _spills(deeper, params):
        return tile

    def held(each: GpuTile) -> int:
        numbers, local = each.numbers(halves=True), each.shared_bytes * HALF_BYTES // FLOAT_BYTES
        registers = allotted(core, numbers, each.threads, local, halves=True)
        return 0 if spills(core, numbers, each.threads) else waves(core, registers, each.threads, local, halves=True)

    return deeper if held(deeper) >= held(tile) > 0 else tile


@cache
def best_gpu_tile(batch: int, rows: int, columns: int, depth: int, params: GpuMatmulParams) -> GpuTile | None:
    """Return the cheapest tile for `batch` products of `rows` x `depth` and `depth` x `columns`; None if none fits."""

    def order(tile: GpuTile) -> tuple:
        # At equal cost: less memory traffic first, then whole tiles of terms, then the larger tile.
        memory = memory_bytes(tile, batch, rows, columns, depth, params)
        time = cost.cycles(described(tile, batch, rows, columns, depth, params, memory), params)
        time *= 1 if tile.splits == 1 else _SPLIT_MARGIN
        return time, memory, depth % tile.depth > 0, -tile.rows * tile.columns

    tiles = (each for tile in candidates(depth, params) for each in _in_bands(tile, batch, rows, columns, params))
    return min(tiles, key=order, default=None)


def _in_bands(tile: GpuTile, batch: int, rows: int, columns: int, params: GpuMatmulParams) -> list[GpuTile]:
    """Return the tile with each band that is worth a try; none if it is split though thread blocks are many."""
    if math.isinf(params.rates.memory):
        return [tile]
    across = -(-columns // tile.columns)
    if tile.splits > 1 and batch * -(-rows // tile.rows) * across >= _ENOUGH * params.limits.processors:
        return []
    return [tile, *(replace(tile, band=band) for band in bands(across))]
