# SPDX-License-Identifier: Apache-2.0
"""Tiles of an attention on tensor cores, as data; the model of time (`cost`) chooses one by its description."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import tvm

from ....target import Limits
from ...core.plans import Price
from .. import cost
from ..cost import BlockKernel, BlockRates, BlockWork, TileParams, Wait
from ..gemm import ptx
from ..machine import ADDRESSES, HALF_BYTES, HELD_REGISTERS, LAST_LEVEL_RATE_MATRIX, WARP, Processor
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
class Figures:
    """The cycles of an attention whose products are made by single warps, or by warpgroups.

    Attributes
    ----------
    instruction, latency : float
        Cycles for which an instruction keeps a quarter of a processor busy, and that it takes one warp alone.
    score : float
        The same for softmax of 32 scores; both are equal.
    fragment, copied : float
        Cycles for loading 16 x 16 numbers from shared memory, and for copying 32 vectors into it.
    renewed, block : float
        Further cycles for each block of keys of a warp, and that it takes one warp alone.
    near : float
        Factor of the time of a block of keys if three stages prefetch only one.
    least : int
        Columns of an instruction below which it takes no less time.
    filled : float
        Factor of the time of copies that fill in zeros past the last term.
    overlap : float or None
        Share of the shorter of products and softmax that adds to the longer; None if warps of other thread blocks
        overlap with them (`cost.BlockWork`).
    rates : BlockRates
    processor : Processor
    """

    instruction: float
    latency: float
    score: float
    copied: float
    block: float
    rates: BlockRates
    fragment: float = 0.0
    renewed: float = 0.0
    near: float = 1.0
    least: int = 0
    filled: float = 1.0
    overlap: float | None = 1.0
    processor: Processor = _PROCESSOR


# Fitted to 118 kernels of 24 shapes on an H100 (2026-11-25); `begin` is until the first block of keys.
_RATES = BlockRates(last_level=LAST_LEVEL_RATE_MATRIX, begin=4490.0)
_BY_WARPS = Figures(0.26, 4.9, 17.6, 0.8, 323.0, _RATES, fragment=7.0, renewed=348.0)
_BY_GROUPS = Figures(
    *(4.3, 2.7, 10.4, 16.5, 567.0, replace(_RATES, begin=7000.0)),
    near=1.02,
    least=64,
    filled=7.3,
    overlap=None,
    # An H100's, by its data sheet. With it for single warps too, some attentions of 256 terms get other tiles.
    processor=Processor(shared_bytes=228 * 1024),
)


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
    least_rows : int
        Least rows; attentions with fewer are left to other rules.
    read : float
        Cycles for 32 numbers that are read for softmax.
    by_warps, by_groups : Figures
        Of products by single warps, and by warpgroups.
    candidates : tuple of AttentionTile
    """

    limits: Limits
    shared_bytes: int
    warp_groups: bool = False
    least_rows: int = 16
    read: float = 10.7
    by_warps: Figures = _BY_WARPS
    by_groups: Figures = _BY_GROUPS
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


def price(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> Price:
    """Return the predicted time of an attention, by its terms."""
    return cost.price(described(tile, shape, params), _device(tile, params))


def _device(tile: AttentionTile, params: AttentionParams) -> TileParams:
    own = _figures(tile, params)
    return TileParams(params.limits, own.processor, own.rates)


def _figures(tile: AttentionTile, params: AttentionParams) -> Figures:
    return params.by_groups if tile.group else params.by_warps


def described(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> BlockKernel:
    """Return an attention as the work of a thread block: its blocks of keys."""
    own, thread_blocks = _figures(tile, params), shape.thread_blocks(tile)
    sides = tile.keys * (shape.deep + shape.wide)  # numbers of a block of keys and values
    multiplied = max(tile.keys, own.least) * shape.deep + max(shape.wide, own.least) * tile.keys
    instructions = tile.fragments * multiplied / (ptx.COLUMNS * TERMS)
    softmax = tile.fragments * tile.keys * ptx.ROWS / WARP * (own.score + params.read * shape.read)
    fragments = sides / (ptx.ROWS * TERMS)
    fills = (shape.deep, shape.wide) != (shape.depth, shape.width)
    copies = sides / (ptx.HALF.row * WARP) * own.copied * (own.filled if fills else 1.0)
    turns = shape.blocks(tile) * (own.near if tile.stages == 3 else 1.0)
    rest = softmax + fragments * own.fragment + own.renewed
    return BlockKernel(
        *(thread_blocks, tile.threads, shape.shared_bytes(tile) + 1024, shape.values(tile) + ADDRESSES),
        (
            BlockWork(turns, tensor=instructions * own.instruction, rest=rest, overlap=own.overlap),
            BlockWork(turns, instructions=copies),
        ),
        (
            Wait(turns, own.block),
            Wait(turns * instructions, own.latency),
            Wait(turns, softmax),
            Wait(turns * fragments, own.fragment),
            Wait(turns, copies / tile.warps),
        ),
        cached=shape.blocks(tile) * thread_blocks * sides * HALF_BYTES,
    )


@cache
def best_attention_tile(shape: AttentionShape, params: AttentionParams) -> AttentionTile | None:
    """Return the cheapest tile for an attention; None if none fits."""
    # A processor with a single resident thread block idles while that one waits for its first block of keys.
    most = params.by_warps.processor.shared_bytes // 2
    able = [each for each in params.candidates if fits(each, shape, params) and each.stages <= shape.blocks(each)]
    able = [each for each in able if each.group or shape.shared_bytes(each) <= most]

    def order(tile: AttentionTile) -> float:
        return cost.cycles(described(tile, shape, params), _device(tile, params))

    return min(able, key=order, default=None)
