# SPDX-License-Identifier: Apache-2.0
"""Tiles of windowed kernels on a GPU, as data; the model of time (`cost`) chooses one by its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import ClassVar

from tvm import DataType

from ....ir.texels import is_texture
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ....target import Limits
from ...core.expressions import largest_divisor
from ...core.plans import Price
from ...core.reduction import Reduction
from .. import cost, machine
from ..cost import BlockKernel, BlockRates, BlockWork, TileParams, Wait
from ..machine import ADDRESSES, FLOAT_BYTES, HALF_BYTES, VECTOR, WARP, Processor
from ..occupancy import BlockTile, fits
from ..thread_numbers import ADDRESSES_GEMM, Held
from ..waves import most_registers, spills
from .lines import Lines


@dataclass(frozen=True)
class ProductTile(BlockTile):
    """A tile of a windowed product that a thread block computes.

    Rows are output channels (the weights), columns are pixels; `depth` is of one slice.

    Attributes
    ----------
    slices : int
        Parts of the sum that are computed at the same time, each by its own threads, and then added up.
    vector : int
        Widest vector that a thread reads from shared memory, in elements; if it is 1, neighbouring results belong to
        neighbouring threads.
    """

    splits: ClassVar[int] = 1  # no split-K: slices take its place
    band: ClassVar[int] = 0
    slices: int = 1
    vector: int = 4

    @property
    def terms(self) -> int:
        """Terms in shared memory at a time, of all slices."""
        return self.depth * self.slices

    @property
    def shared_sums(self) -> int:
        """Slices whose sums pass through shared memory: all of them, since each finishes some of the results."""
        return self.slices if self.slices > 1 else 0

    @property
    def pad(self) -> int:
        """Padding between rows in shared memory, in elements: threads that store down a column use several banks."""
        return VECTOR


@dataclass(frozen=True)
class SlideTile:
    """Results of one thread that slides a window over its inputs.

    Attributes
    ----------
    across : int
        Results along the axis that the window slides on.
    down : int
        Results along the axis before it.
    rows : int
        Output channels that read the same inputs.
    taps : int
        Most terms of the sum that are unrolled; the rest is a loop.
    threads : int
        Threads of a thread block.
    """

    across: int
    down: int
    rows: int
    taps: int
    threads: int


# Threads of a processor: assumed on 2026-11-21. With an H100's 2048 other tiles are chosen, which were not timed.
_PROCESSOR = Processor(threads=1536)
# Work and waits add up, and thread blocks start as others end: assumed on 2026-11-21.
_RATES = BlockRates(by_warp=machine.ISSUED_BY_WARP, overlap=1.0, whole_waves=False)


@dataclass(frozen=True)
class GpuWindowParams(TileParams):
    """Parameters of the rules for windows on a GPU; of the processor's limits, only its threads count.

    Attributes
    ----------
    busy_threads : int
        Threads that keep a processor busy; with fewer, a thread gets fewer results, or a sum is cut in slices.
    product_rows : int
        Least rows that share inputs through shared memory; fewer share them in registers (a sliding window).
    taps, written : int
        Most terms that are unrolled, and most terms times results: unrolled loads are all in flight at once.
    run : int
        Contiguous results that one thread finishes at once: 4 for a texture (a texel), else 1.
    element_bytes : int
        Bytes of an element in shared memory; only tiles of phones depend on it.
    """

    processor: Processor = _PROCESSOR
    rates: BlockRates = _RATES
    busy_threads: int = 256
    product_rows: int = 16
    taps: int = 49
    written: int = 400
    run: int = 1
    element_bytes: int = FLOAT_BYTES

    @classmethod
    def of(cls, limits: Limits) -> GpuWindowParams:
        """Return the parameters of a target with these limits."""
        return cls(limits.at_most(cls.limits.work_group, cls.limits.shared_bytes))

    @property
    def busy(self) -> int:
        """Threads that keep the whole device busy."""
        return self.limits.processors * self.busy_threads

    @property
    def slide_threads(self) -> int:
        """Threads of a thread block whose threads share nothing."""
        return min(_SLIDE_THREADS, self.limits.work_group)

    @property
    def facts(self) -> dict[str, int]:
        """The limits that the best choices of a rule depend on."""
        limits = self.limits
        sizes = {"threads": limits.work_group, "shared": limits.shared_bytes}
        return {**sizes, "vector": limits.shared_vector, "run": self.run}

    def in_texels(self) -> GpuWindowParams:
        """Return the parameters for results in a texture."""
        return replace(self, run=TEXEL)

    def of_type(self, factor: str) -> GpuWindowParams:
        """Return the parameters for operands of a type."""
        return replace(self, element_bytes=HALF_BYTES if factor == "float16" else FLOAT_BYTES)


# (rows, columns, rows of a thread, columns of a thread). Chosen: candidates, from 2026-11-21.
_TILES = (
    (64, 64, 8, 4),
    (64, 64, 4, 4),
    (32, 64, 4, 4),
    (64, 32, 4, 4),
    (32, 32, 4, 4),
    (32, 32, 4, 2),
    (16, 64, 4, 4),
    (16, 32, 4, 4),
    (16, 32, 2, 2),
)
# A further one of Adrenos that give such threads all registers. Chosen by Mesa's compiler and the model of accesses
# (2026-11-29): on an Adreno 740 it asks for two thirds of the lines of 64 x 64 results; on a 660 it spilled.
_TILE_ADRENO = (128, 64, 8, 8)
_SLICES = (1, 2, 4, 8)  # parts of the terms of a sum, each with threads of its own. Chosen: candidates
_MOST_STEP = 36  # terms of a step by whole windows. Chosen: float16 adds up as many of a texel of channels
_SLIDE_THREADS = 128  # threads of a thread block that share nothing. Chosen: four warps; no others were timed
# Numbers of four bytes of a sliding thread of Mali beside sums and values, for addresses of 64 bits: assumed on
# 2026-11-29; docs/mali.md has what spills with it.
_ADDRESSES_MALI = 24
_MOST_RESULTS = 16  # results of a thread that slides. Chosen: no times of more were kept (2026-11-25)


def depth_step(depth: int, window: int) -> int:
    """Return the terms of a step: whole windows, or a divisor of one: window positions of a thread stay the same."""
    if window <= 64:
        return min(depth, window * max(1, 16 // window))
    return max(d for d in range(1, 17) if window % d == 0)


def _in_windows(tile: ProductTile, depth: int, window: int, size: int, params: GpuWindowParams) -> ProductTile:
    """Return a tile of a phone with a window for each thread that gathers one of `size` rows or columns, if even.

    Each thread then gathers one window, and knows its positions when compiled. Two thread blocks still have room in the
    local memory of a core. Those of the largest tile have several windows, as far as there is room: with more terms
    fewer tiles of them are widened, and added to the sums.
    """
    each = window * max(1, tile.slice_threads // size)
    if tile.slice_threads % size or tile.depth % window:
        return tile

    def fit(deeper: ProductTile) -> bool:
        taken = 2 * deeper.shared_bytes * params.element_bytes // FLOAT_BYTES
        return depth % deeper.depth == 0 and deeper.depth <= _MOST_STEP and taken <= params.limits.shared_bytes

    largest = (tile.thread_rows, tile.thread_columns) == _TILE_ADRENO[2:]
    windows = range(_MOST_STEP // each if largest else 1, 0, -1)
    return next(filter(fit, (replace(tile, depth=each * many) for many in windows)), tile)


def product_tile(
    batch: int, rows: int, columns: int, depth: int, window: int, params: GpuWindowParams, left: bool = False
) -> ProductTile | None:
    """Return the tile with the lowest estimated time for a product of these extents; None if none fits.

    Parameters
    ----------
    window : int
        Terms of the sum for one input channel.
    left : bool
        Whether the operand of the rows is read through the window, and not that of the columns.
    """
    step, limits, vector = depth_step(depth, window), params.limits, params.limits.shared_vector
    shapes = (_TILE_ADRENO, *_TILES) if limits.adreno_core is not None else _TILES
    tiles = [ProductTile(r, c, step, tr, tc, slices, vector) for r, c, tr, tc in shapes for slices in _SLICES]
    if limits.phone:
        tiles = [_in_windows(t, depth, window, t.rows if left else t.columns, params) for t in tiles]
    fitting = [
        tile
        for tile in tiles
        if tile.threads >= 2 * WARP
        and fits(tile, _with_registers(limits))
        and not _spills(tile, limits)
        and (tile.slices == 1 or tile.terms <= depth)
        and tile.thread_columns % params.run == 0
        and tile.thread_rows * tile.thread_columns % (tile.slices * params.run) == 0
    ]
    if fitting:
        return min(fitting, key=lambda t: cost.cycles(described(t, batch, rows, columns, depth, params), params))
    # Registers may spill, but the threads and shared memory of a thread block have hard limits.
    smallest = [ProductTile(16, 32, min(step, 16), down, max(down, params.run), 1, vector) for down in (2, 4)]
    within = replace(limits, registers=max(t.values for t in smallest) + ADDRESSES)
    return next((tile for tile in smallest if fits(tile, within)), None)


def _with_registers(limits: Limits) -> Limits:
    """Return the limits with registers for any tile on an Adreno, for which `_spills` counts them.

    A gathered tile goes to shared memory by one element or texel at a time, and `BlockTile.values` has a place for all.
    """
    core = limits.adreno_core
    return limits if core is None else replace(limits, registers=core.most * core.unit)


def _spills(tile: ProductTile, limits: Limits) -> bool:
    """Whether the sums of a thread in float32 spill on an Adreno: a 610 has 24 registers for each of 128 threads."""
    core = limits.adreno_core
    if core is None:
        return False
    # With 49 terms of the largest tile Mesa's compiler spilled on a 740, and with all terms where registers are fewer.
    largest = (tile.thread_rows, tile.thread_columns) == _TILE_ADRENO[2:]
    if largest and (most_registers(core, tile.threads) < core.most or tile.depth > _MOST_STEP):
        return True
    return spills(core, Held(tile.thread_rows, tile.thread_columns, 1).window, tile.threads)


def product_price(tile: ProductTile, batch: int, rows: int, columns: int, depth: int, params: GpuWindowParams) -> Price:
    """Return the predicted time of a windowed product, by its terms."""
    return cost.price(described(tile, batch, rows, columns, depth, params), params)


def described(
    tile: ProductTile, batch: int, rows: int, columns: int, depth: int, params: GpuWindowParams
) -> BlockKernel:
    """Return a windowed product as the work of a thread block, whose shared memory and registers are ignored."""
    warps, sliced = tile.threads / WARP, tile.slices > 1
    steps = -(-depth // (tile.depth * tile.slices))
    results = tile.thread_rows * tile.thread_columns
    each = results + (tile.thread_rows + tile.thread_columns) / 2
    each += machine.PER_GATHERED * (tile.rows + tile.columns) / tile.slice_threads
    return BlockKernel(
        batch * -(-rows // tile.rows) * -(-columns // tile.columns),
        tile.threads,
        work=(
            BlockWork(steps * tile.depth, instructions=warps * each),
            BlockWork(instructions=warps * 4 * results * sliced),
        ),
        waits=(Wait(steps + sliced, machine.WINDOW_WAIT),),
    )


def slide_tile(
    across: int, down: int, rows: int, results: int, params: GpuWindowParams, together: int = 1
) -> SlideTile:
    """Return the tile for a window that slides over `results` results, `across` of them along its axis.

    Parameters
    ----------
    together : int
        Results of a thread at each point of the tile: 4 for a texture (a texel), else 1.
    """
    shapes = sorted(
        {(largest_divisor(across, a), largest_divisor(rows, r)) for a in (8, 4, 2, 1) for r in (8, 4, 2, 1)},
        key=lambda s: (prod(s), min(s)),
        reverse=True,
    )
    least = shapes[-1]
    busy = (s for s in shapes if together * prod(s) <= _MOST_RESULTS and results // (together * prod(s)) >= params.busy)
    across, rows = next(busy, least)
    each = together * across * rows
    # Unrolled loads are all in flight at once.
    return SlideTile(across, 1, rows, _taps(each, params.written, params), params.slide_threads)


def _taps(results: int, written: int, params: GpuWindowParams) -> int:
    """Return the most terms that are unrolled for `results` results of a thread."""
    return min(params.taps, written // results, params.limits.registers - ADDRESSES - results)


def without_spills(tile: SlideTile, lines: Lines, sizes: Mapping, params: GpuWindowParams) -> SlideTile:
    """Return a tile with fewer unrolled terms if their values do not fit into a phone's registers beside the sums.

    Mesa's compiler begins all loads of unrolled terms before the first product. With 36 terms for 16 results and
    stride 2, a thread holds 364 numbers, and has registers for 192.

    Parameters
    ----------
    sizes : mapping of tirx.Var to int
        Results of a thread along spatial iterators.
    """
    core, beside = params.limits.adreno_core, 0
    if core is None and params.limits.phone:  # Mali: addresses have 64 bits, and are in the same 64 registers
        core, beside = params.limits.device.core, _ADDRESSES_MALI
    if core is None or not lines.known:
        return tile
    taps = tile.taps
    while taps > 1:
        unrolled = written_out(lines.reduction, taps)
        held = prod(sizes.values()) + lines.held(sizes, unrolled) + beside
        if not unrolled or not spills(core, held, tile.threads):
            break
        taps = prod(lines.reduction.extents[v] for v in unrolled) - 1  # one iterator less
    return replace(tile, taps=max(1, taps))


def texel_taps(reduction: Reduction, params: GpuWindowParams) -> int:
    """Return the most unrolled terms of a texel of results whose loads, all begun at once, an Adreno has registers for.

    Where the core copies a texel's coordinates next to each other, they take as many numbers as a texel has of float32.
    """
    core = params.limits.adreno_core
    if core is None:
        return params.taps
    read = loads(reduction.term)
    each = sum(TEXEL * DataType(str(load.source.dtype)).itemsize / FLOAT_BYTES for load in read)
    each += 0 if core.aliases else TEXEL * sum(is_texture(load.source) for load in read)
    room = most_registers(core, params.slide_threads) * core.unit - ADDRESSES_GEMM - TEXEL
    return max(1, min(params.taps, int(room // each))) if each else params.taps


def slide_tile_by_lines(lines: Lines, axes: tuple, results: int, params: GpuWindowParams) -> SlideTile:
    """Return the tile whose loads take the fewest cycles, among those that leave the device enough threads.

    Parameters
    ----------
    axes : tuple
        Iterators along which a thread may have several results: that on which the window slides, the one before it,
        and the channels of a group; None where there is none.
    """
    extents = lines.reduction.extents
    counts = [sorted({largest_divisor(extents.get(v, 1), most) for most in (1, 2, 4, 8)}) for v in axes]
    shapes = [shape for shape in product(*counts) if prod(shape) <= _MOST_RESULTS]
    busy = [shape for shape in shapes if results // prod(shape) >= params.busy] or [(1, 1, 1)]

    def tile(shape) -> SlideTile:
        # Twice as many terms are unrolled: those of a two-dimensional tile share most of their loads.
        return SlideTile(*shape, _taps(prod(shape), 2 * params.written, params), params.slide_threads)

    def order(shape) -> float:
        sizes = {v: n for v, n in zip(axes, shape, strict=True) if v is not None}
        work = lines.work(sizes, written_out(lines.reduction, tile(shape).taps))
        return work.turns * cost.turn_alone(work, params)

    return tile(min(busy, key=order))


def written_out(reduction: Reduction, taps: int) -> tuple:
    """Return the last iterators of a sum that have at most `taps` terms together."""
    many, count = 1, 0
    for var in reversed(reduction.reduce):
        if many * reduction.extents[var] > taps:
            break
        many, count = many * reduction.extents[var], count + 1
    return reduction.reduce[len(reduction.reduce) - count :]
