# SPDX-License-Identifier: Apache-2.0
"""Tiles of a GEMM on tensor cores, as data; the model of time (`cost`) chooses one by its description."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import tvm

from ....target import Limits, cuda_architecture, has_matrix_instructions
from ...core.plans import Price
from .. import cost, machine
from ..cost import BlockKernel, BlockRates, BlockWork, TileParams, Wait
from ..gemm import ptx
from ..machine import ADDRESSES, HELD_REGISTERS, WARP

# Parts of the terms of a product. Chosen: candidates, each at most twice the one before.
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_LEAST_TERMS = 256  # least terms of a part of a split-K product. Chosen: two to four stages of a tile
# The same, in terms, if an operand passes through registers. Chosen: that makes each stage slow, so fewer are worth a
# part.
_LEAST_HELD = 128
_FEW_BLOCKS = 2  # thread blocks per processor. Chosen: a product with more keeps all processors busy unsplit
_OPT_IN = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}  # KiB of a thread block, by sm_XX


@dataclass(frozen=True)
class MatrixTile:
    """How a thread block computes its part of a product.

    Attributes
    ----------
    rows, columns : int
        Results of a thread block.
    depth : int
        Terms of a stage.
    warp_rows, warp_columns : int
        Results of a warp; multiples of 16.
    stages : int
        Tiles of terms that are in shared memory or being copied there at a time.
    slices : int
        Parts into which a thread block divides the terms of a stage, each with warps of its own for all results.
    splits : int
        Split-K factor: thread blocks that share the terms of one tile; above 1, a second kernel adds their sums.
    band : int
        Tiles along the columns of a band (`block_order`); 0 for all of them.
    group : bool
        Warpgroups of four warps multiply together (``wgmma``); each warp has 16 rows.
    """

    rows: int
    columns: int
    depth: int
    warp_rows: int
    warp_columns: int
    stages: int = 3
    slices: int = 1
    splits: int = 1
    band: int = 0
    group: bool = False

    @property
    def warps_down(self) -> int:
        """Warps of a slice along the rows."""
        return self.rows // self.warp_rows

    @property
    def warps_across(self) -> int:
        """Warps of a slice along the columns."""
        return self.columns // self.warp_columns

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return self.warps_down * self.warps_across * self.slices

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return self.warps * WARP

    def steps(self, element: ptx.Element) -> int:
        """Return the instructions of each slice along the terms of a stage."""
        return self.depth // (element.terms * self.slices)

    @property
    def sums(self) -> int:
        """Sums that each thread keeps."""
        return self.warp_rows * self.warp_columns // WARP

    @property
    def values(self) -> int:
        """Registers of a thread that hold values: sums, and the fragments of a step."""
        return self.sums + self.warp_rows // ptx.ROWS * ptx.LEFT + self.warp_columns // ptx.COLUMNS * ptx.RIGHT

    @property
    def result_pitch(self) -> int:
        """Distance between rows of results in shared memory, in float32 elements."""
        return self.columns + 8

    @property
    def result_rows(self) -> int:
        """Rows of results in shared memory at a time, of all slices."""
        return self.slices * self.warps_down * ptx.ROWS

    def shared_bytes(self, element: ptx.Element) -> int:
        """Return the shared memory of a thread block in bytes: the stages of both operands, later results."""
        stage = (self.rows + self.columns) * self.depth
        return max(element.bytes * stage * self.stages, machine.FLOAT_BYTES * self.result_rows * self.result_pitch)


@dataclass(frozen=True)
class Candidate:
    """A tile, and the cycles that one of its stages takes, measured on an H200 with numbers of two bytes.

    Those of 192 rows or columns are of an H100 (`benchmarks/matrix_tiles.py`).

    Attributes
    ----------
    alone : float
        Cycles with one thread block on a processor: latency that several resident thread blocks can hide.
    busy : float
        Cycles with many thread blocks on a processor: throughput, which they cannot hide.
    """

    tile: MatrixTile
    alone: float
    busy: float

    def of(self, element: ptx.Element) -> Candidate:
        """Return the candidate for another type: as many bytes of terms, in the same time.

        Not measured: in NVIDIA's data sheets (A100, H100) bfloat16 is as fast as float16, and tf32, of twice the bytes,
        half as fast. An instruction takes 32 bytes of terms of each type: stages of equal bytes take equal time.
        """
        return replace(self, tile=replace(self.tile, depth=self.tile.depth * ptx.HALF.bytes // element.bytes))


def _group(rows: int, columns: int, depth: int, stages: int, alone: float, slices: int = 1) -> Candidate:
    tile = MatrixTile(rows, columns, depth, ptx.ROWS, columns, stages, slices, group=True)
    return Candidate(tile, alone, rows * columns * depth / machine.GROUP_RATE)


def _warps(tile: MatrixTile, alone: float) -> Candidate:
    return Candidate(tile, alone, tile.rows * tile.columns * tile.depth / machine.WARP_RATE)


_GROUPS = (
    _group(64, 16, 128, 4, 600),
    _group(64, 32, 64, 6, 370),
    _group(64, 32, 128, 5, 476),
    _group(64, 32, 256, 4, 847, slices=2),
    _group(64, 64, 64, 6, 280),
    _group(64, 64, 64, 4, 304),
    _group(64, 64, 128, 4, 548, slices=2),
    _group(64, 96, 64, 4, 377),
    _group(64, 128, 64, 6, 376),
    _group(64, 128, 64, 4, 375),
    _group(64, 192, 64, 5, 552),
    _group(128, 64, 64, 5, 611),
    _group(128, 96, 64, 5, 832),
    _group(128, 128, 64, 4, 853),
    _group(128, 192, 64, 4, 1060),
    _group(128, 256, 64, 4, 1207),
    _group(192, 96, 64, 4, 1280),
    _group(192, 128, 64, 4, 1220),
    _group(192, 192, 64, 4, 1240),
)
_WARPS = (
    _warps(MatrixTile(16, 32, 128, 16, 16, 5, slices=4), 389),
    _warps(MatrixTile(16, 64, 128, 16, 32, 5, slices=2), 371),
    _warps(MatrixTile(32, 32, 128, 32, 32, 5, slices=4), 378),
    _warps(MatrixTile(32, 64, 64, 32, 16, 6), 440),
    _warps(MatrixTile(64, 64, 64, 32, 32, 5), 586),
    _warps(MatrixTile(64, 96, 64, 32, 48, 4), 750),
    _warps(MatrixTile(128, 128, 32, 64, 32, 4), 700),
    _warps(MatrixTile(128, 128, 64, 64, 64, 3), 1400),
)


# Of an H200; cycles until the first product begins, of each thread block that starts after others on a processor, of a
# result, and of the kernel that adds partial sums. Fitted to benchmarks/matrix_tiles.json (2026-11-24).
_RATES = BlockRates(last_level=machine.LAST_LEVEL_RATE_MATRIX, begin=4670.0, wave=120.0, result=0.069, second=2740.0)


@dataclass(frozen=True)
class MatrixParams(TileParams):
    """Properties of a GPU that the rule for matrix instructions uses; the default numbers are those of an H200.

    Attributes
    ----------
    candidates : tuple of Candidate
    element : Element
        Type of the factors.
    warp_groups : bool
        Whether the target has warpgroup instructions (``wgmma``).
    rounds_to : str
        Type to which float32 factors may be rounded; empty if they may not.
    shared_bytes : int
        Most dynamic shared memory of a thread block.
    held, held_busy, held_wait : float
        For elements that pass through registers: cycles of a thread per element, cycles of a processor per element
        while many thread blocks run, and cycles that each stage waits for them.
    """

    rates: BlockRates = _RATES
    candidates: tuple[Candidate, ...] = _WARPS
    element: ptx.Element = ptx.HALF
    warp_groups: bool = False
    rounds_to: str = ""
    shared_bytes: int = 48 * 1024
    held: float = 10.0
    held_busy: float = 0.12
    held_wait: float = 700.0

    @classmethod
    def of(cls, target: tvm.target.Target) -> MatrixParams | None:
        """Return the parameters of a target; None if it has no matrix instructions."""
        if not has_matrix_instructions(target):
            return None
        capability, own = cuda_architecture(target)
        shared = _OPT_IN.get(capability, 48) * 1024
        groups = capability == 90 and own
        candidates = (*_GROUPS, *_WARPS) if groups else _WARPS
        return cls(Limits.of(target), candidates=candidates, warp_groups=groups, shared_bytes=shared)

    def multiplying(self, element: ptx.Element, turned: bool) -> MatrixParams:
        """Return the same for another type; `turned` if the terms of an operand are not innermost in memory."""
        groups = self.warp_groups and (element.turns or element.terms_innermost or not turned)
        candidates = tuple(each.of(element) for each in self.candidates if groups or not each.tile.group)
        return replace(self, candidates=candidates, element=element, warp_groups=groups)


@dataclass(frozen=True)
class Shape:
    """The properties of a product that its time depends on.

    Attributes
    ----------
    batch, rows, columns, depth : int
        Extents.
    left_held, right_held : bool
        Whether the operand passes through registers on its way to shared memory.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    left_held: bool = False
    right_held: bool = False

    def blocks(self, tile: MatrixTile) -> int:
        """Return the number of thread blocks of one split."""
        return self.batch * -(-self.rows // tile.rows) * -(-self.columns // tile.columns)

    def held(self, tile: MatrixTile) -> int:
        """Return the elements of a stage that pass through registers."""
        return tile.depth * (tile.rows * self.left_held + tile.columns * self.right_held)


def price(tile: MatrixTile, shape: Shape, params: MatrixParams) -> Price | None:
    """Return the predicted time of a product by its terms; None for a tile whose stages were not measured."""
    whole = replace(tile, splits=1)
    found = next((each for each in params.candidates if each.tile == whole), None)
    return None if found is None else cost.price(described(replace(found, tile=tile), shape, params), params)


def described(candidate: Candidate, shape: Shape, params: MatrixParams) -> BlockKernel:
    """Return a product as the work of a thread block: its stages, and what passes through registers in each."""
    tile = candidate.tile
    blocks = shape.blocks(tile) * tile.splits
    rounds, held = -(-shape.depth // (tile.depth * tile.splits)), shape.held(tile)
    work, waits = [BlockWork(rounds, measured=candidate.busy)], [Wait(rounds, candidate.alone)]
    if held:
        work.append(BlockWork(rounds * held, measured=params.held_busy))
        waits += [Wait(rounds, params.held_wait), Wait(rounds * held / tile.threads, params.held)]
    return BlockKernel(
        *(blocks, tile.threads, tile.shared_bytes(params.element) + 1024, tile.values + ADDRESSES),
        *(tuple(work), tuple(waits)),
        cached=blocks * rounds * params.element.bytes * (tile.rows + tile.columns) * tile.depth,
        results=tile.rows * tile.columns * tile.slices,
        sums=2 * tile.splits * machine.FLOAT_BYTES * shape.batch * shape.rows * shape.columns * (tile.splits > 1),
    )


def fits(tile: MatrixTile, shape: Shape, params: MatrixParams) -> bool:
    """Whether a tile is within the limits of a thread block for a product, and its sizes divide each other."""
    element = params.element
    within = tile.threads <= 1024 and tile.shared_bytes(element) <= params.shared_bytes
    held = HELD_REGISTERS * shape.held(tile) // max(1, tile.threads)  # 0 threads: fewer rows than a warp's
    within = within and tile.values + held + ADDRESSES <= params.limits.registers and params.warp_groups >= tile.group
    columns = tile.warp_columns % 16 == 0 and tile.columns % tile.warp_columns == 0
    rows = tile.warp_rows % ptx.ROWS == 0 and tile.rows % tile.warp_rows == 0
    if tile.group:
        rows = rows and tile.warp_rows == ptx.ROWS and tile.rows % 64 == 0 and tile.warp_columns <= element.widest
    depth = tile.depth % (element.terms * tile.slices) == 0 and tile.stages > 1 + tile.group
    return within and rows and columns and depth


def divided(candidate: Candidate, shape: Shape, processors: int) -> Iterator[Candidate]:
    """Yield a candidate unsplit, and with each split-K factor that may be worth a second kernel."""
    tile, least = candidate.tile, _LEAST_HELD if shape.left_held or shape.right_held else _LEAST_TERMS
    for splits in _SPLITS:
        worth = shape.depth >= least * splits and shape.blocks(tile) <= _FEW_BLOCKS * processors
        if splits == 1 or worth:
            yield replace(candidate, tile=replace(tile, splits=splits))


def best_matrix_tile(shape: Shape, params: MatrixParams) -> MatrixTile | None:
    """Return the cheapest tile for a product; None if none fits."""
    best = _best(shape, params)
    return best.tile if best is not None else None


def shortest(shape: Shape, params: MatrixParams) -> float:
    """Estimate the cycles of a product with its cheapest tile; infinite if none fits."""
    best = _best(shape, params)
    return cost.cycles(described(best, shape, params), params) if best is not None else math.inf


@cache
def _best(shape: Shape, params: MatrixParams) -> Candidate | None:
    able = [each for each in params.candidates if fits(each.tile, shape, params)]
    choices = [one for each in able for one in divided(each, shape, params.limits.processors)]
    return min(choices, key=lambda one: cost.cycles(described(one, shape, params), params), default=None)
