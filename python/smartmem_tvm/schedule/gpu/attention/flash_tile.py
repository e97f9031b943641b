# SPDX-License-Identifier: Apache-2.0
"""Tiles of an attention on tensor cores, as data, and the cost model that chooses one for a shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import tvm

from ....target import Limits
from ...core.plans import Price
from ..gemm import ptx
from ..machine import ADDRESSES, HALF_BYTES, HELD_REGISTERS, LAST_LEVEL_RATE_ATTENTION, WARP, Processor
from ..matrix.matrix_tile import MatrixParams

TERMS = ptx.HALF.terms  # terms of one instruction
# Most terms of a score, and most columns of a result. Chosen: with more of them a thread's registers are too few.
WIDEST = 256
_PROCESSOR = Processor()


@dataclass(frozen=True)
class AttentionTile:
    """How a thread block takes a block of rows through all keys.

    Attributes
    ----------
    rows : int
        Rows of a thread block.
    warp_rows : int
        Rows of a warp; a multiple of 16.
    keys : int
        Keys of a stage; a multiple of 16.
    stages : int
        Blocks of keys that are in shared memory or being copied there at a time.
    group : bool
        Warpgroups of four warps multiply together (``wgmma``); each warp has 16 rows.
    """

    rows: int
    warp_rows: int
    keys: int
    stages: int
    group: bool = False

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return self.rows // self.warp_rows

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return self.warps * WARP

    @property
    def fragments(self) -> int:
        """Fragments of 16 rows that a warp has."""
        return self.warp_rows // ptx.ROWS


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of an attention.

    Attributes
    ----------
    batch, rows, keys, depth, width : int
        Extents; `depth` is the number of terms of a score, `width` that of columns of a result.
    held : int
        How many of keys and values pass through registers on their way to shared memory (0 to 2).
    read : int
        Numbers that are read for each score: a bias, a mask.
    """

    batch: int
    rows: int
    keys: int
    depth: int
    width: int
    held: int = 0
    read: int = 0

    @property
    def deep(self) -> int:
        """Terms of a score, with the zeros that pad the last instruction."""
        return padded(self.depth)

    @property
    def wide(self) -> int:
        """Columns of a result, with those that pad the last pair of instructions."""
        return padded(self.width)

    def blocks(self, tile: AttentionTile) -> int:
        """Return the number of blocks of keys."""
        return -(-self.keys // tile.keys)

    def thread_blocks(self, tile: AttentionTile) -> int:
        """Return the number of thread blocks."""
        return self.batch * -(-self.rows // tile.rows)

    def shared_bytes(self, tile: AttentionTile) -> int:
        """Return the shared memory of a thread block in bytes: its rows, and the stages of keys and values."""
        return HALF_BYTES * (tile.rows * self.deep + tile.stages * tile.keys * (self.deep + self.wide))

    def values(self, tile: AttentionTile) -> int:
        """Return the registers of a thread that hold values: rows, scores, results, fragments of keys or values."""
        each = self.deep // TERMS * ptx.LEFT + tile.keys // ptx.COLUMNS * ptx.SUMS + self.wide // ptx.COLUMNS * 4
        beside = tile.keys // TERMS * ptx.LEFT if tile.group else 0  # weights, beside the next scores
        held = self.held * tile.keys * max(self.deep, self.wide) // max(1, tile.threads) * HELD_REGISTERS
        return tile.fragments * (each + 6) + beside + held + 8


def padded(extent: int) -> int:
    """Round up to a multiple of the terms of an instruction."""
    return -(-extent // TERMS) * TERMS


_TILES = tuple(
    AttentionTile(*numbers)
    for numbers in (
        *((128, 32, 64, 3), (128, 32, 64, 2), (64, 32, 64, 2), (64, 16, 64, 2), (64, 16, 32, 3)),
        *((32, 16, 64, 3), (32, 16, 64, 2), (32, 16, 32, 2), (16, 16, 128, 2), (16, 16, 64, 2), (16, 16, 32, 2)),
        *((16, 16, 64, 1), (128, 16, 80, 1), (16, 16, 16, 2), (16, 16, 16, 1)),
        *((64, 16, 128, 3, True), (64, 16, 64, 4, True), (64, 16, 64, 3, True), (64, 16, 32, 3, True)),
        *((128, 16, 64, 4, True), (64, 16, 208, 1, True), (128, 16, 80, 1, True), (64, 16, 64, 1, True)),
    )
)
"""Candidates: the tiles that were fastest for some shape, and small ones that always fit."""


@dataclass(frozen=True)
class Together:
    """Parameters of the cost model if warpgroups multiply (``wgmma``); times in cycles.

    Attributes
    ----------
    instruction, latency, score, copied, block, begin : float
        As in `AttentionParams`.
    near : float
        Factor of the time if only one block of keys is prefetched.
    least : int
        Columns of an instruction below which it takes no less time.
    filled : float
        Factor of the time of copies that fill in zeros past the last term.
    shared_bytes : int
        Shared memory of a processor.
    """

    instruction: float = 4.3
    latency: float = 2.7
    score: float = 10.4
    copied: float = 16.5
    block: float = 567.0
    begin: float = 7000.0
    near: float = 1.02
    least: int = 64
    filled: float = 7.3
    shared_bytes: int = 228 * 1024


@dataclass(frozen=True)
class AttentionParams:
    """Properties of a GPU that the rule uses; the cycles are fitted to 118 kernels of 24 shapes on an H100.

    Attributes
    ----------
    limits : Limits
    shared_bytes : int
        Most dynamic shared memory of a thread block.
    warp_groups : bool
        Whether the target has warpgroup instructions (``wgmma``).
    processor : Processor
    least_rows : int
        Least rows; attentions with fewer are left to other rules.
    instruction, latency : float
        Cycles for which an instruction keeps a quarter of a processor busy, and that it takes one warp alone.
    score, read : float
        The same for softmax of 32 scores, and for 32 numbers that are read for it.
    fragment, copied : float
        Cycles for loading 16 x 16 numbers from shared memory, and for copying 32 vectors into it.
    renewed : float
        Further cycles for each block of keys of a warp.
    block, begin, later : float
        Further cycles that a block of keys takes one warp alone, cycles until the first block begins, and cycles of a
        thread block that starts after others.
    cache_bytes_per_cycle : float
        Throughput of the last-level cache for each processor while all read.
    together : Together
        The parameters that differ if warpgroups multiply.
    candidates : tuple of AttentionTile
    """

    limits: Limits
    shared_bytes: int
    warp_groups: bool = False
    processor: Processor = _PROCESSOR
    least_rows: int = 16
    instruction: float = 0.26
    latency: float = 4.9
    score: float = 17.6
    read: float = 10.7
    fragment: float = 7.0
    copied: float = 0.8
    renewed: float = 348.0
    block: float = 323.0
    begin: float = 4490.0
    later: float = 0.1
    cache_bytes_per_cycle: float = LAST_LEVEL_RATE_ATTENTION
    together: Together = Together()
    candidates: tuple[AttentionTile, ...] = _TILES

    @classmethod
    def of(cls, target: tvm.target.Target) -> AttentionParams | None:
        """Return the parameters of a target; None if it has no matrix instructions."""
        known = MatrixParams.of(target)
        return None if known is None else cls(known.limits, known.shared_bytes, known.warp_groups)


def fits(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> bool:
    """Whether a tile is within the limits of a thread block, and its sizes divide each other."""
    whole = tile.warp_rows % ptx.ROWS == 0 and tile.rows % tile.warp_rows == 0 and tile.keys % 16 == 0
    if tile.group:
        whole = whole and params.warp_groups and tile.warp_rows == ptx.ROWS and tile.rows % 64 == 0 and tile.keys <= 256
    ahead = tile.stages >= min(2 + tile.group, shape.blocks(tile))
    small = tile.threads <= 1024 and shape.shared_bytes(tile) <= params.shared_bytes
    return whole and ahead and small and shape.values(tile) + ADDRESSES <= params.limits.registers


class _AttentionCycles(NamedTuple):
    """Cycles of an attention.

    Attributes
    ----------
    begin, later : float
        Cycles until the first block begins, and of thread blocks that start after others.
    alone, busy, cache : float
        Cycles of a block of keys: of a warp by itself, of the units of a processor, and of the loads of all thread
        blocks from the last-level cache. The longest of the three counts.
    blocks, near : int, float
        Number of blocks of keys, and the factor of their time if only one is prefetched.
    """

    begin: float
    later: float
    alone: float
    busy: float
    cache: float
    blocks: int
    near: float = 1.0

    @property
    def cycles(self) -> float:
        """The total."""
        return self.begin + self.later + self.blocks * max(self.alone, self.busy, self.cache) * self.near


def cycles(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> float:
    """Estimate the cycles of an attention."""
    return _times(tile, shape, params).cycles


def price(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> Price:
    """Return `cycles`, broken down into terms."""
    times = _times(tile, shape, params)
    blocks = times.blocks * times.near
    terms = {
        "until the first block begins": times.begin,
        "thread blocks after thread blocks": times.later,
        "a warp alone": blocks * times.alone,
        "instructions, softmax and copies": blocks * times.busy,
        "keys and values from the last cache": blocks * times.cache,
    }
    return Price(times.cycles, terms, "sum, in which of the last three the longest counts")


def _times(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> _AttentionCycles:
    if tile.group:
        return _times_together(tile, shape, params)
    thread_blocks, blocks = shape.thread_blocks(tile), shape.blocks(tile)
    sides = tile.keys * (shape.deep + shape.wide)  # numbers of a block of keys and values
    instructions, fragments = sides / (ptx.COLUMNS * TERMS), sides / (ptx.ROWS * TERMS)
    softmax = tile.keys * ptx.ROWS / WARP * (params.score + params.read * shape.read)
    busy = tile.fragments * (instructions * params.instruction + softmax) + fragments * params.fragment + params.renewed
    alone = params.block + tile.fragments * (instructions * params.latency + softmax) + fragments * params.fragment
    copies = sides / (ptx.HALF.row * WARP) * params.copied
    mine = -(-thread_blocks // params.limits.processors)
    registers = shape.values(tile) + ADDRESSES
    at_once = params.processor.resident(tile.threads, shape.shared_bytes(tile) + 1024, registers)
    waves = -(-mine // max(1, min(mine, at_once)))
    work = (
        waves * (alone + copies / tile.warps),
        -(-mine * tile.warps // 4) * busy + mine * copies / 4,
        thread_blocks * sides * HALF_BYTES / (params.cache_bytes_per_cycle * params.limits.processors),
    )
    return _AttentionCycles(params.begin, waves * params.later, *work, blocks)


def _times_together(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> _AttentionCycles:
    """Return the same for asynchronous instructions: softmax of a warpgroup overlaps with products of other groups."""
    own = params.together
    thread_blocks, sides = shape.thread_blocks(tile), tile.keys * (shape.deep + shape.wide)
    wide = max(tile.keys, own.least) * shape.deep + max(shape.wide, own.least) * tile.keys
    products = wide / (ptx.COLUMNS * TERMS)
    softmax = tile.keys * ptx.ROWS / WARP * (own.score + params.read * shape.read)
    filled = own.filled if (shape.deep, shape.wide) != (shape.depth, shape.width) else 1.0
    copies = sides / (ptx.HALF.row * WARP) * own.copied * filled
    mine = -(-thread_blocks // params.limits.processors)
    processor = replace(params.processor, shared_bytes=own.shared_bytes)
    registers = shape.values(tile) + ADDRESSES
    at_once = max(1, min(mine, processor.resident(tile.threads, shape.shared_bytes(tile) + 1024, registers)))
    waves, warps = -(-mine // at_once), -(-mine * tile.warps // 4)
    less, more = sorted((warps * products * own.instruction, warps * softmax))
    work = (
        waves * (own.block + products * own.latency + softmax + copies / tile.warps),
        more + less / at_once + mine * copies / 4,
        thread_blocks * sides * HALF_BYTES / (params.cache_bytes_per_cycle * params.limits.processors),
    )
    near = own.near if tile.stages == 3 else 1.0
    return _AttentionCycles(own.begin, waves * params.later, *work, shape.blocks(tile), near)


@cache
def best_attention_tile(shape: AttentionShape, params: AttentionParams) -> AttentionTile | None:
    """Return the cheapest tile for an attention; None if none fits."""
    # A processor with a single resident thread block idles while that one waits for its first block of keys.
    most = params.processor.shared_bytes // 2
    able = [each for each in params.candidates if fits(each, shape, params) and each.stages <= shape.blocks(each)]
    able = [each for each in able if each.group or shape.shared_bytes(each) <= most]
    return min(able, key=lambda tile: cycles(tile, shape, params), default=None)
