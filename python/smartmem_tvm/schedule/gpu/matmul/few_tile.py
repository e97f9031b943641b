# SPDX-License-Identifier: Apache-2.0
"""Tiles of a product of few rows and a matrix of numbers on a GPU, as data; the model of time (`cost`) chooses one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from ....target import GRAPH_LAUNCH, Limits
from ...core.plans import Price
from .. import cost, machine
from ..cost import BlockKernel, BlockRates, BlockWork, TileParams, Wait
from ..machine import FLOAT_BYTES, WARP, Processor
from ..occupancy import fits

VECTOR_BYTES = 16
"""Bytes of one load, by definition of CUDA."""
_ACROSS = (2, 4, 8, 16, 32)  # threads along the columns of a thread block. Chosen: candidates
_OWN = (1, 2, 4)  # columns of a thread whose vectors lie along the depth. Chosen: candidates
_STEPS = (1, 2, 4, 8)  # vectors of each column that a thread multiplies at a time. Chosen: candidates
STAGES = (2, 3, 4, 5, 8)  # turns of which shared memory has vectors. Chosen: candidates
_WITHOUT_ASKING = 48 * 1024  # bytes of shared memory of any thread block, by definition of CUDA
MOST_RING = 64 * 1024  # bytes of these vectors. Chosen: three thread blocks then share a processor of an H100
# Threads of a thread block, at least, if there are tiles with so many: with 64 most tiles took twice as long on an H200
# (2026-11-29, benchmarks/few_rows.py).
_LEAST_THREADS = 128
_MOST_THREADS = 512  # of a thread block. Chosen: as `gpu.cost` has no wider ones
_WRITTEN_OUT = 1024  # products that are unrolled, at most. Chosen: as `matmul_tile` has them
_MOST_NUMBERS = 112  # registers of a thread for its numbers. Chosen: 512 threads have 128 each
_OVERLAP = 0.5  # share of the second longest time that adds to the longest: assumed, as fitted for GEMM in float32
# Bytes per cycle of a large GPU between its memory and the last cache: assumed, 90 % of 4.8 TB/s at 1.755 GHz.
_MEMORY = 2460.0
_MOST_LEFT = 32 * 1024  # bytes of a left operand in shared memory. Chosen: 16 KB are left for sums
# Cycles of a turn for which only other threads can make up: with its left operand in shared memory, assumed, and from
# memory, measured on an H200 (2026-11-29, benchmarks/few_rows.py).
_TURN, _TURN_LOADING = 250, 1100
# Bytes by which each run of neighbouring bytes takes longer from memory: fitted to runs of 32, 64 and 128 bytes on an
# H200 (2026-11-29).
_RUN_BYTES = 9.6
MEMORY_LATENCY = 1000  # cycles of a copy from memory while all processors read: assumed (2026-11-29)
MEMORY_RATES = BlockRates(memory=_MEMORY, by_warp=machine.ISSUED_BY_WARP, overlap=_OVERLAP, second=GRAPH_LAUNCH)


def launches(static: int, dynamic: int) -> bool:
    """Whether CUDA starts a thread block with so many bytes of shared memory of both kinds.

    TVM's runtime asks for more than 48 KB only where the dynamic part alone has so many.
    """
    return dynamic >= _WITHOUT_ASKING or static + dynamic <= _WITHOUT_ASKING


@dataclass(frozen=True)
class Few:
    """A product of few rows.

    Attributes
    ----------
    batch, rows, columns, depth : int
    sides : int
        Products of the same left operand that make one result.
    along : bool
        Whether vectors lie along the depth.
    vector : int
        Numbers of one load.
    bytes : int
        Bytes of a number of the right operand.
    read : int
        Numbers that are loaded for one of the left operand.
    left_bytes : int
        Bytes of the left operand of a batch.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    sides: int
    along: bool
    vector: int
    bytes: int
    read: int = 1
    left_bytes: int = 0

    @property
    def staged(self) -> int:
        """Bytes of it that thread blocks keep in shared memory."""
        return self.left_bytes if self.left_bytes <= _MOST_LEFT else 0


@dataclass(frozen=True)
class FewTile:
    """How a thread block computes its part of a product of few rows.

    Attributes
    ----------
    rows, columns : int
        Results of a thread block, of each of its products.
    slices : int
        Parts of the depth, each with threads of its own for all results.
    steps : int
        Units of the depth that a thread multiplies in a turn.
    stages : int
        Turns of which shared memory has vectors; all but one are on their way.
    own : int
        Columns of a thread.
    vector : int
        Numbers of one copy.
    unit : int
        Numbers of the depth of a vector: 1 if vectors lie along the columns.
    along : bool
        Whether they lie along the depth.
    sides : int
        Products of the same left operand.
    left_bytes : int
        Bytes of the left operand in shared memory; 0 if threads load it where they multiply.
    """

    rows: int
    columns: int
    slices: int
    steps: int
    stages: int
    own: int
    vector: int
    unit: int = 1
    along: bool = False
    sides: int = 1
    left_bytes: int = 0

    splits = 1
    band = 0

    @property
    def threads_across(self) -> int:
        """Threads of a slice."""
        return self.columns // self.own

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return self.threads_across * self.slices

    @property
    def within(self) -> int:
        """Slices of the same columns in a warp."""
        return min(self.slices, WARP if self.along else max(1, WARP // self.threads_across))

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a thread block, in bytes: the left operand, sums of warps, and of parts of them."""
        partial = self.slices // self.within
        sums = 2 * FLOAT_BYTES * partial * self.sides * self.rows * self.columns if partial > 1 else 0
        return self.left_bytes + sums

    @property
    def staged(self) -> bool:
        """Whether the left operand is in shared memory."""
        return self.left_bytes > 0

    @property
    def loads(self) -> int:
        """Vectors of a thread in a turn."""
        return self.sides * self.steps * (self.own if self.along else 1)

    def ring_bytes(self, size: int) -> int:
        """Return the dynamic shared memory for vectors on their way, in bytes, of numbers of `size` bytes."""
        return self.stages * self.loads * self.threads * self.vector * size

    @property
    def values(self) -> int:
        """Registers of a thread: sums, words, and terms of a row."""
        words = self.loads * VECTOR_BYTES // FLOAT_BYTES
        return self.sides * self.rows * self.own + words + self.steps * self.unit


@dataclass(frozen=True)
class FewParams(TileParams):
    """Properties of a GPU and of a kernel that the rule uses.

    Attributes
    ----------
    weights : frozenset of int
        Arguments of the kernel that may be read before the kernels before it are done.
    """

    rates: BlockRates = MEMORY_RATES
    weights: frozenset[int] = frozenset()

    @classmethod
    def of(cls, limits: Limits) -> FewParams:
        """Return the parameters of a target with these limits."""
        sizes = cls(limits.at_most(_MOST_THREADS, limits.shared_bytes))
        return sizes if limits.device is None else replace(sizes, processor=Processor.of(limits.device))


def able(tile: FewTile, few: Few, limits: Limits) -> bool:
    """Whether a thread block of a tile is within the limits, and its warps are whole."""
    powers = all(each & (each - 1) == 0 and each > 0 for each in (tile.threads_across, tile.slices))
    same = (
        tile.rows == few.rows and tile.left_bytes == few.staged and tile.sides == few.sides and tile.along == few.along
    )
    shape = tile.unit == few.vector if few.along else (tile.unit, tile.own) == (1, few.vector)
    ring = tile.ring_bytes(few.bytes)
    ahead = tile.steps > 0 and tile.stages > 1 and ring <= MOST_RING and launches(tile.shared_bytes, ring)
    return powers and same and shape and ahead and tile.threads % WARP == 0 and fits(tile, limits)


def candidates(few: Few, limits: Limits) -> list[FewTile]:
    """Return the tiles of a product, within the limits of a thread block."""
    found, units = [], few.depth // (few.vector if few.along else 1)
    for own in _OWN if few.along else (few.vector,):
        for across in (1, *_ACROSS) if few.along else _ACROSS:
            for slices in (1 << n for n in range(10)):
                if not WARP <= across * slices <= _MOST_THREADS or slices >= 2 * units:
                    continue
                for steps, stages in product(_STEPS, STAGES):
                    tile = FewTile(
                        *(few.rows, across * own, slices, steps, stages, own, few.vector),
                        unit=few.vector if few.along else 1,
                        along=few.along,
                        sides=few.sides,
                        left_bytes=few.staged,
                    )
                    written = few.rows * tile.loads * few.vector
                    small = written <= _WRITTEN_OUT and tile.values <= _MOST_NUMBERS and steps * slices <= units
                    if (small or steps == 1) and able(tile, few, limits):
                        found.append(tile)
    return found


def described(tile: FewTile, few: Few) -> BlockKernel:
    """Return a product as the work of a thread block."""
    units = few.depth // tile.unit
    turns = -(-units // (tile.slices * tile.steps))
    ahead = min(tile.stages - 1, turns)
    warps, numbers = tile.threads / WARP, tile.loads * few.vector
    # A conversion for each number of the right operand, a copy and a load for each vector, terms of the left operand.
    each = numbers * (few.rows + 1) + 4 * tile.loads + few.read * few.rows * tile.steps * tile.unit
    loaded = tile.threads * tile.loads * few.vector * few.bytes
    finish = tile.sides * tile.rows * tile.own * (2 * tile.within.bit_length() + tile.slices // tile.within)
    run = few.bytes * (few.depth if tile.along else tile.columns)
    matrix = few.sides * few.batch * few.columns * few.depth * few.bytes * (1 + _RUN_BYTES / run)
    chain = _TURN if tile.staged else _TURN_LOADING
    return BlockKernel(
        few.batch * -(-few.columns // tile.columns),
        *(tile.threads, tile.shared_bytes + tile.ring_bytes(few.bytes), tile.values + machine.ADDRESSES),
        work=(
            BlockWork(turns, instructions=warps * each, loaded=loaded),
            BlockWork(instructions=warps * finish, loaded=tile.left_bytes),
        ),
        waits=(Wait(max(turns / ahead, turns * chain / MEMORY_LATENCY) + 1, MEMORY_LATENCY),),
        memory=matrix,
    )


def price(tile: FewTile, few: Few, params: FewParams) -> Price:
    """Return the predicted time of a product, by its terms."""
    return cost.price(described(tile, few), params)


def few_tile(few: Few, params: FewParams) -> FewTile | None:
    """Return the tile of the least predicted time; None if none is within the limits of a thread block."""
    found = candidates(few, params.limits)
    large = [each for each in found if each.threads >= _LEAST_THREADS] or found
    return min(large, key=lambda t: (cost.cycles(described(t, few), params), t.threads, t.steps), default=None)
