# SPDX-License-Identifier: Apache-2.0
"""Tiles of an attention by matrix instructions, as data, and the cost model that chooses one for a shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import tvm

from ....target import Limits
from ...core.plans import Price
from ..matrix import instructions as ptx
from ..matrix.tile import MatrixParams
from ..occupancy import ADDRESSES, HELD_REGISTERS, WARP, Processor

TERMS = ptx.HALF.terms  # of one instruction
_HALF = 2  # bytes
WIDEST = 256  # terms of a score, columns of a result
_PROCESSOR = Processor()


@dataclass(frozen=True)
class AttentionTile:
    """How a group of warps takes a block of rows through all keys.

    Attributes
    ----------
    rows : int
        Rows of a group.
    warp_rows : int
        Rows of a warp; a multiple of 16.
    keys : int
        Keys of a stage; a multiple of 16.
    stages : int
        Blocks of keys that are in shared memory or on their way at a time.
    group : bool
        Four warps multiply together (``wgmma``); each has 16 rows.
    """

    rows: int
    warp_rows: int
    keys: int
    stages: int
    group: bool = False

    @property
    def warps(self) -> int:
        """Warps of a group."""
        return self.rows // self.warp_rows

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.warps * WARP

    @property
    def fragments(self) -> int:
        """Instructions that a warp's rows take."""
        return self.warp_rows // ptx.ROWS


@dataclass(frozen=True)
class AttentionShape:
    """An attention as numbers.

    Attributes
    ----------
    batch, rows, keys, depth, width : int
        Extents; depth is that of scores, width that of results.
    held : int
        Operands of keys and values that pass through registers on their way to shared memory.
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
        """Terms of a score with the zeros that fill up the last instruction."""
        return padded(self.depth)

    @property
    def wide(self) -> int:
        """Columns of a result with those that fill up the last pair of instructions."""
        return padded(self.width)

    def blocks(self, tile: AttentionTile) -> int:
        """Blocks of keys."""
        return -(-self.keys // tile.keys)

    def groups(self, tile: AttentionTile) -> int:
        """Groups of warps."""
        return self.batch * -(-self.rows // tile.rows)

    def shared_bytes(self, tile: AttentionTile) -> int:
        """Shared memory of a group: its rows, and the stages of keys and values."""
        return _HALF * (tile.rows * self.deep + tile.stages * tile.keys * (self.deep + self.wide))

    def values(self, tile: AttentionTile) -> int:
        """Registers of a thread that hold values: rows, scores, results, and fragments of keys or values."""
        each = self.deep // TERMS * ptx.LEFT + tile.keys // ptx.COLUMNS * ptx.SUMS + self.wide // ptx.COLUMNS * 4
        beside = tile.keys // TERMS * ptx.LEFT if tile.group else 0  # weights, while scores of the next block come
        held = self.held * tile.keys * max(self.deep, self.wide) // max(1, tile.threads) * HELD_REGISTERS
        return tile.fragments * (each + 6) + beside + held + 8


def padded(extent: int) -> int:
    """The next multiple of what an instruction takes at a time."""
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
"""Those that were fastest for some shape, and small ones that always fit."""


@dataclass(frozen=True)
class Together:
    """Cycles where four warps multiply together.

    Attributes
    ----------
    instruction, latency, score, copied, block, begin : float
        As in `AttentionParams`.
    near : float
        Times as long where only one block of keys is on its way.
    least : int
        Columns as long as which fewer take.
    filled : float
        Times as long for copies where zeros are filled in past the last term.
    shared_bytes : int
        Of a processor.
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
    """What the rule may know of a GPU; the cycles are fitted to 118 kernels of 24 shapes on an H100.

    Attributes
    ----------
    limits : Limits
    shared_bytes : int
        Of a group that asks for more than every group may have.
    groups : bool
        Whether four warps may multiply together.
    processor : Processor
    least_rows : int
        Rows of which fewer are left to other rules.
    instruction, latency : float
        Cycles for which an instruction keeps a quarter of a processor busy, and that it takes one warp alone.
    score, read : float
        The same for softmax of 32 scores, and for 32 numbers that are read for it.
    fragment, copied : float
        For 16 x 16 numbers out of shared memory, and for 32 vectors into it.
    renewed : float
        For each block of keys of a warp besides.
    block, begin, group : float
        Cycles that a block takes a warp alone besides, until the first block begins, and of a group after others.
    cache_bytes_per_cycle : float
        From the last cache, for each processor while all read.
    together : Together
        What differs where four warps multiply together.
    candidates : tuple of AttentionTile
    """

    limits: Limits
    shared_bytes: int
    groups: bool = False
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
    group: float = 0.1
    cache_bytes_per_cycle: float = 36.5
    together: Together = Together()
    candidates: tuple[AttentionTile, ...] = _TILES

    @classmethod
    def of(cls, target: tvm.target.Target) -> AttentionParams | None:
        """What is known of a target; None where it has no such instructions."""
        known = MatrixParams.of(target)
        return None if known is None else cls(known.limits, known.shared_bytes, known.groups)


def fits(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> bool:
    """Whether a group may have what a tile takes, and its numbers divide each other."""
    whole = tile.warp_rows % ptx.ROWS == 0 and tile.rows % tile.warp_rows == 0 and tile.keys % 16 == 0
    if tile.group:
        whole = whole and params.groups and tile.warp_rows == ptx.ROWS and tile.rows % 64 == 0 and tile.keys <= 256
    ahead = tile.stages >= min(2 + tile.group, shape.blocks(tile))
    small = tile.threads <= 1024 and shape.shared_bytes(tile) <= params.shared_bytes
    return whole and ahead and small and shape.values(tile) + ADDRESSES <= params.limits.registers


class _Times(NamedTuple):
    """Cycles of an attention.

    Attributes
    ----------
    begin, groups : float
        Until the first block begins, and of groups after others.
    alone, busy, cache : float
        Of a block of keys: what a warp takes by itself, what the units of a processor take, and what all groups load
        from the last cache. The longest of the three counts.
    blocks : float
        Blocks of keys, times as long as each takes where only one is on its way.
    """

    begin: float
    groups: float
    alone: float
    busy: float
    cache: float
    blocks: int
    near: float = 1.0

    @property
    def cycles(self) -> float:
        """Until all is done."""
        return self.begin + self.groups + self.blocks * max(self.alone, self.busy, self.cache) * self.near


def cycles(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> float:
    """Estimated time of an attention."""
    return _times(tile, shape, params).cycles


def price(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> Price:
    """`cycles` by what they are spent on."""
    times = _times(tile, shape, params)
    blocks = times.blocks * times.near
    terms = {
        "until the first block begins": times.begin,
        "groups after groups": times.groups,
        "a warp alone": blocks * times.alone,
        "instructions, softmax and copies": blocks * times.busy,
        "keys and values from the last cache": blocks * times.cache,
    }
    return Price(times.cycles, terms, "sum, in which of the last three the longest counts")


def _times(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> _Times:
    if tile.group:
        return _times_together(tile, shape, params)
    groups, blocks = shape.groups(tile), shape.blocks(tile)
    sides = tile.keys * (shape.deep + shape.wide)  # numbers of a block of keys and values
    instructions, fragments = sides / (ptx.COLUMNS * TERMS), sides / (ptx.ROWS * TERMS)
    softmax = tile.keys * ptx.ROWS / WARP * (params.score + params.read * shape.read)
    busy = tile.fragments * (instructions * params.instruction + softmax) + fragments * params.fragment + params.renewed
    alone = params.block + tile.fragments * (instructions * params.latency + softmax) + fragments * params.fragment
    copies = sides / (ptx.HALF.row * WARP) * params.copied
    mine = -(-groups // params.limits.processors)
    registers = shape.values(tile) + ADDRESSES
    at_once = params.processor.resident(tile.threads, shape.shared_bytes(tile) + 1024, registers)
    waves = -(-mine // max(1, min(mine, at_once)))
    work = (
        waves * (alone + copies / tile.warps),
        -(-mine * tile.warps // 4) * busy + mine * copies / 4,
        groups * sides * _HALF / (params.cache_bytes_per_cycle * params.limits.processors),
    )
    return _Times(params.begin, waves * params.group, *work, blocks)


def _times_together(tile: AttentionTile, shape: AttentionShape, params: AttentionParams) -> _Times:
    """The same where instructions run by themselves: softmax of a group goes on beside products of other groups."""
    own = params.together
    groups, sides = shape.groups(tile), tile.keys * (shape.deep + shape.wide)
    wide = max(tile.keys, own.least) * shape.deep + max(shape.wide, own.least) * tile.keys
    products = wide / (ptx.COLUMNS * TERMS)
    softmax = tile.keys * ptx.ROWS / WARP * (own.score + params.read * shape.read)
    filled = own.filled if (shape.deep, shape.wide) != (shape.depth, shape.width) else 1.0
    copies = sides / (ptx.HALF.row * WARP) * own.copied * filled
    mine = -(-groups // params.limits.processors)
    processor = replace(params.processor, shared_bytes=own.shared_bytes)
    registers = shape.values(tile) + ADDRESSES
    at_once = max(1, min(mine, processor.resident(tile.threads, shape.shared_bytes(tile) + 1024, registers)))
    waves, warps = -(-mine // at_once), -(-mine * tile.warps // 4)
    less, more = sorted((warps * products * own.instruction, warps * softmax))
    work = (
        waves * (own.block + products * own.latency + softmax + copies / tile.warps),
        more + less / at_once + mine * copies / 4,
        groups * sides * _HALF / (params.cache_bytes_per_cycle * params.limits.processors),
    )
    near = own.near if tile.stages == 3 else 1.0
    return _Times(own.begin, waves * params.group, *work, shape.blocks(tile), near)


@cache
def best_attention_tile(shape: AttentionShape, params: AttentionParams) -> AttentionTile | None:
    """The cheapest tile for an attention; None if none fits."""
    # A processor that holds a single group has nothing to do while that one waits for its first block.
    most = params.processor.shared_bytes // 2
    able = [each for each in params.candidates if fits(each, shape, params) and each.stages <= shape.blocks(each)]
    able = [each for each in able if each.group or shape.shared_bytes(each) <= most]
    return min(able, key=lambda tile: cycles(tile, shape, params), default=None)
