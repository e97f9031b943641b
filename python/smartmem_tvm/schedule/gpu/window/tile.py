# SPDX-License-Identifier: Apache-2.0
"""Tiles of windowed kernels on a GPU, and which one a kernel gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tvm.target import Target

from ....planner.texture_form import TEXEL
from ....target import named_device
from ..launch import ADDRESSES


@dataclass(frozen=True)
class ProductTile:
    """A tile of a windowed product that a group of threads computes.

    Attributes
    ----------
    rows, columns : int
        Results of a group: rows are the side of the weights, columns that of the pixels.
    depth : int
        Terms of the sum that a slice holds in shared memory at a time.
    thread_rows, thread_columns : int
        Results of a thread, which it keeps in registers.
    slices : int
        Parts of the sum that are computed at once, each by its own threads of the group, and then added up.
    vector : int
        Most neighbours that a thread reads from shared memory at once; where that is 1, the neighbours of a result
        belong to the neighbours of its thread.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    slices: int = 1
    vector: int = 4

    @property
    def threads(self) -> int:
        """Threads of a slice."""
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)

    @property
    def values(self) -> int:
        """Registers of a thread that hold values: sums, operands of a step, the next tile on its way."""
        staged = -(-self.depth * (self.rows + self.columns) // self.threads)
        return self.thread_rows * self.thread_columns + self.thread_rows + self.thread_columns + staged

    @property
    def pad(self) -> int:
        """Values between rows in shared memory, so that threads that store down a column use several banks."""
        return 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a group."""
        operands = self.depth * (self.rows + self.columns + 2 * self.pad)
        sums = self.rows * self.columns if self.slices > 1 else 0
        return 4 * self.slices * (operands + sums)


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
        Channels of a group that read the same inputs.
    taps : int
        Most terms of the sum that are written out; the rest is a loop.
    threads : int
        Threads of a group.
    """

    across: int
    down: int
    rows: int
    taps: int
    threads: int


@dataclass(frozen=True)
class GpuWindowParams:
    """Parameters of the rules for windows on a GPU.

    Attributes
    ----------
    threads : int
        Most threads of a group.
    shared_bytes : int
        Shared memory of a group.
    registers : int
        Registers of a thread.
    busy : int
        Threads that keep the whole device busy; below that a thread gets fewer results, or a sum is cut in slices.
    processors : int
        Units that run groups of threads independently of each other.
    product_rows : int
        Fewer rows than that read the same inputs from registers rather than from shared memory.
    taps, written : int
        Most terms that are written out, and most times results: loads that are written out are all under way at once.
    vector : int
        Most values of a load from shared memory: a vector of OpenCL C need not be aligned, and a compiler that cannot
        tell makes single loads of it that all meet in a few banks.
    run : int
        Neighbouring results that one thread finishes at once: the numbers of a texel.
    """

    threads: int = 256
    shared_bytes: int = 48 * 1024
    registers: int = 255
    busy: int = 132 * 256
    processors: int = 132
    product_rows: int = 16
    taps: int = 49
    written: int = 400
    vector: int = 1
    run: int = 1

    @classmethod
    def of(cls, target: Target) -> GpuWindowParams:
        """The parameters of a GPU target: threads and shared memory of a group as it says."""
        threads = int(target.attrs.get("max_threads_per_block") or cls.threads)
        shared = int(target.attrs.get("max_shared_memory_per_block") or cls.shared_bytes)
        sizes = cls(
            threads=min(threads, cls.threads),
            shared_bytes=min(shared, cls.shared_bytes),
            vector=4 if target.kind.name == "cuda" else 1,
        )
        row = named_device(target)
        if row is None:
            return sizes
        return replace(
            sizes, registers=row.registers, processors=row.cores, busy=row.cores * cls.busy // cls.processors
        )

    @property
    def facts(self) -> dict[str, int]:
        """What the best choices of a rule depend on."""
        return {"threads": self.threads, "shared": self.shared_bytes, "vector": self.vector, "run": self.run}

    def in_texels(self) -> GpuWindowParams:
        """The parameters for results in a texture."""
        return replace(self, run=TEXEL)


# Rows, columns, and those of a thread.
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
_SLICES = (1, 2, 4, 8)
# Of a processor of the device: warps that it holds, instructions in a cycle, those of one warp in a cycle, and cycles
# that a step of a sum waits for memory and barriers.
_WARP, _HELD, _ISSUED, _ALONE, _WAIT = 32, 48, 4, 0.5, 600
_PER_GATHERED = 12  # instructions for an element of a tile of an operand


def depth_step(depth: int, window: int) -> int:
    """Terms of a step: whole windows, or an even part of one, so that a thread's places in the window stay the same."""
    if window <= 64:
        return min(depth, window * max(1, 16 // window))
    return max(d for d in range(1, 17) if window % d == 0)


def product_tile(batch: int, rows: int, columns: int, depth: int, window: int, params: GpuWindowParams) -> ProductTile:
    """The tile with the lowest estimated time for a product of these extents.

    Parameters
    ----------
    window : int
        Terms of the sum for one input channel.
    """
    step = depth_step(depth, window)
    tiles = [ProductTile(r, c, step, tr, tc, slices, params.vector) for r, c, tr, tc in _TILES for slices in _SLICES]
    fitting = [
        tile
        for tile in tiles
        if 2 * _WARP <= tile.threads * tile.slices <= params.threads
        and tile.shared_bytes <= params.shared_bytes
        and tile.values + ADDRESSES <= params.registers
        and (tile.slices == 1 or tile.slices * step <= depth)
        and tile.thread_columns % params.run == 0
        and tile.thread_rows * tile.thread_columns % (tile.slices * params.run) == 0
    ]
    smallest = ProductTile(16, 32, min(step, 16), 2, max(2, params.run), 1, params.vector)
    return min(fitting or [smallest], key=lambda t: _cycles(t, batch, rows, columns, depth, params))


def _cycles(tile: ProductTile, batch: int, rows: int, columns: int, depth: int, params: GpuWindowParams) -> float:
    """Estimated time of the processor with the most groups."""
    groups = -(-batch * -(-rows // tile.rows) * -(-columns // tile.columns) // params.processors)
    warps = tile.threads * tile.slices / _WARP
    held = min(groups, max(1, int(_HELD // warps)))
    steps = -(-depth // (tile.depth * tile.slices))
    results = tile.thread_rows * tile.thread_columns
    each = results + (tile.thread_rows + tile.thread_columns) / 2
    each += _PER_GATHERED * (tile.rows + tile.columns) / tile.threads
    work = groups * warps * (steps * tile.depth * each + 4 * results * (tile.slices > 1))
    waits = _WAIT * (steps + (tile.slices > 1)) * groups / held
    return work / min(_ISSUED, _ALONE * warps * held) + waits


def slide_tile(
    across: int, down: int, rows: int, results: int, params: GpuWindowParams, together: int = 1
) -> SlideTile:
    """The tile for a window that slides over `results` results, `across` of them along its axis.

    Parameters
    ----------
    together : int
        Results of a thread at each place of the tile: the numbers of a texel.
    """

    def divisor(extent: int, most: int) -> int:
        return max(d for d in range(1, most + 1) if extent % d == 0)

    shapes = sorted(
        {(divisor(across, a), divisor(rows, r)) for a in (8, 4, 2, 1) for r in (8, 4, 2, 1)},
        key=lambda s: (prod(s), min(s)),
        reverse=True,
    )
    least = shapes[-1]
    busy = (s for s in shapes if together * prod(s) <= 16 and results // (together * prod(s)) >= params.busy)
    across, rows = next(busy, least)
    each = together * across * rows
    # what is written out is loaded at once
    taps = min(params.taps, params.written // each, params.registers - ADDRESSES - each)
    return SlideTile(across, 1, rows, taps, 128)
