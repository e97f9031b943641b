# SPDX-License-Identifier: Apache-2.0
"""Tiles of a product of few rows and a weight in codes on a GPU, as data; the model of time (`cost`) chooses one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from ....target import GRAPH_LAUNCH, Limits
from ...core.coded_panels import Panels
from ...core.expressions import largest_divisor
from ...core.plans import Price
from .. import cost, machine
from ..cost import BlockKernel, BlockRates, BlockWork, TileParams, Wait
from ..machine import FLOAT_BYTES, VECTOR, WARP, Processor
from ..occupancy import fits
from .few_tile import MEMORY_LATENCY, MEMORY_RATES, MOST_RING, STAGES, launches

PANEL = 32
"""Columns of a panel on a GPU. Chosen: its words are a line of the cache, which eight threads read in vectors."""
_MOST_WORDS = 4
"""Words of each column that a thread reads at a time. Chosen: those of a group of 32 steps, and 64 bytes in flight for
each thread."""
_WRITTEN_OUT = 1024  # products that are unrolled, at most. Chosen: as `matmul_tile` has them
# Threads along the columns of a thread block. Chosen: candidates; with fewer, most of a line is of other thread blocks.
_ACROSS = (8, 16, 32)
_SLICES = (1, 2, 4, 8, 16, 32, 64)  # parts of the depth of a thread block. Chosen: candidates
# Instructions for a code beside its products. Chosen: those of the source, a mask, a difference, and some shifts.
_UNPACKED = 2.25
_MOST_THREADS = 256  # of a thread block. Chosen: as `matmul_tile` has them
_LEAST_THREADS = 64  # of a thread block, if the depth has so many parts. Chosen: a wave of an Adreno
# Share of the second longest time that adds to the longest, in cycles: assumed, as fitted for GEMM in float32.
_OVERLAP = 0.5
_RATES = BlockRates(overlap=_OVERLAP, second=GRAPH_LAUNCH)


@dataclass(frozen=True)
class CodedTile:
    """How a thread block computes its part of a product of few rows.

    Attributes
    ----------
    rows, columns : int
        Results of a thread block; each thread has all rows of `VECTOR` columns.
    slices : int
        Parts of the depth, each with threads of its own for all results; their sums are added in shared memory.
    words : int
        Words of each column that a thread reads at a time; they are of one group.
    stages : int
        Turns of which shared memory has words, all but one on their way; 1 if they are loaded into registers.
    """

    rows: int
    columns: int
    slices: int
    words: int
    stages: int = 1

    splits = 1
    band = 0

    @property
    def threads_across(self) -> int:
        """Threads of a slice."""
        return self.columns // VECTOR

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return self.threads_across * self.slices

    @property
    def results(self) -> int:
        """Results of a thread."""
        return self.rows * VECTOR

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a thread block, in bytes: sums of slices, of parts of them, scales on their way."""
        added = 2 * self.slices if self.slices > 1 else 0
        beside = 2 * VECTOR * self.stages * self.threads if self.stages > 1 else 0
        return FLOAT_BYTES * (added * self.rows * self.columns + beside)

    @property
    def ring_bytes(self) -> int:
        """Dynamic shared memory for words on their way, in bytes."""
        return FLOAT_BYTES * VECTOR * self.words * self.stages * self.threads if self.stages > 1 else 0

    @property
    def values(self) -> int:
        """Registers of a thread: two sums for each result, words, unpacked codes of a word, terms of a row, scales."""
        return 2 * self.results + VECTOR * (self.words + 2) + 2 * machine.VECTOR + VECTOR


@dataclass(frozen=True)
class CodedParams(TileParams):
    """Properties of a GPU that the rule uses.

    Attributes
    ----------
    copies : bool
        Whether asynchronous copies bring words through shared memory (CUDA, compute capability 8.0).
    """

    rates: BlockRates = _RATES
    copies: bool = False

    @classmethod
    def of(cls, limits: Limits) -> CodedParams:
        """Return the parameters of a target with these limits."""
        sizes = cls(limits.at_most(_MOST_THREADS, limits.shared_bytes))
        return sizes if limits.device is None else replace(sizes, processor=Processor.of(limits.device))

    def copying(self) -> CodedParams:
        """Return the same for a GPU with asynchronous copies."""
        return replace(self, copies=True, rates=MEMORY_RATES)


def described(tile: CodedTile, panels: Panels, columns: int) -> BlockKernel:
    """Return a product as the work of a thread block."""
    steps = tile.words * panels.in_word
    turns = -(-panels.groups * panels.group // (steps * tile.slices))
    warps = tile.threads / WARP
    each = VECTOR * steps * (tile.rows + _UNPACKED) + tile.rows * steps
    loaded = panels.bytes * tile.columns / (panels.panels * panels.width) / turns
    finish = tile.results + (tile.slices if tile.slices > 1 else 0)
    ahead = min(tile.stages - 1, turns)
    waits = (turns / ahead, MEMORY_LATENCY) if ahead else (turns, machine.WINDOW_WAIT)
    return BlockKernel(
        -(-columns // tile.columns),
        *(tile.threads, tile.shared_bytes + tile.ring_bytes, tile.values + machine.ADDRESSES),
        work=(BlockWork(turns, instructions=warps * each, loaded=loaded), BlockWork(instructions=warps * finish)),
        waits=(Wait(waits[0] + (tile.slices > 1), waits[1]),),
        memory=panels.bytes,
    )


def price(tile: CodedTile, panels: Panels, columns: int, params: CodedParams) -> Price:
    """Return the predicted time of a product, by its terms."""
    return cost.price(described(tile, panels, columns), params)


def words_at_once(panels: Panels, rows: int) -> int:
    """Return the words of each column that a thread reads at a time: a divisor of those of a group."""
    most = max(1, _WRITTEN_OUT // (rows * VECTOR * panels.in_word))
    return largest_divisor(int(panels.words.shape[2]), min(most, _MOST_WORDS))


def able(tile: CodedTile, limits: Limits) -> bool:
    """Whether a thread block of a tile is within the limits of a target."""
    ring = tile.ring_bytes
    return fits(tile, limits) and (not ring or (ring <= MOST_RING and launches(tile.shared_bytes, ring)))


def coded_tile(panels: Panels, rows: int, columns: int, params: CodedParams) -> CodedTile | None:
    """Return the tile of the least predicted time; None if none is within the limits of a thread block."""
    words = words_at_once(panels, rows)
    turns = panels.groups * int(panels.words.shape[2]) // words
    stages = STAGES if params.copies else (1,)
    sizes = product(_ACROSS, _SLICES, stages)
    found = [CodedTile(rows, VECTOR * across, slices, words, ring) for across, slices, ring in sizes]
    wide = -(-columns // VECTOR) * VECTOR
    fitting = [
        t
        for t in found
        if fits(t, params.limits)
        and t.ring_bytes <= MOST_RING
        and t.slices < 2 * turns
        and t.columns <= max(VECTOR * _ACROSS[0], wide)
    ]

    large = [t for t in fitting if t.threads >= _LEAST_THREADS] or fitting
    return min(large, key=lambda t: (cost.cycles(described(t, panels, columns), params), t.threads), default=None)
