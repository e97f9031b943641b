# SPDX-License-Identifier: Apache-2.0
"""Decide how a convolution is done by transformed tiles: results of a tile, block of tiles, register tile, threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar

from ..params import CpuParams
from ..tile import Tile, cycles, fits
from .shape import Windows
from .transforms import WINDOW

FLOAT_BYTES = 4
AT_ONCE = 16  # products in a cycle
BLOCK_BYTES = 512 * 1024  # of transformed tiles: half of a second-level cache
SUMS_BYTES = 256 * 1024  # of the products of a group of filters
FAR_BYTES = 16  # a cycle, from the third-level cache
WAKE = 1_000  # cycles for each thread that is woken
_MOST_VECTORS = 6  # side by side in a register tile


def far_cycles(blocks: int, weights: int, tiles: int, sums: int) -> float:
    """Cycles for what blocks read from the third-level cache: bytes of all weights, of a block's tiles and sums.

    That weights are read for the first time is not counted.
    """
    chunks = -(-sums // SUMS_BYTES)
    again = tiles * (1 + chunks) if tiles > BLOCK_BYTES else 0
    return ((blocks - 1) * weights + blocks * again) / FAR_BYTES


@dataclass(frozen=True)
class Division:
    """How a convolution by transformed tiles is divided into blocks, and among threads.

    Attributes
    ----------
    rows : int
        Rows of tiles in a block.
    outside : bool
        Threads take blocks; else the blocks are done one after the other, by all threads.
    cycles : float
        Estimated cycles until the last thread is done with its products.
    share : float
        Of all that is transformed, what the busiest thread does.
    parts : int
        Parts of the rows of a block, whose products are a task each.
    tile : Tile or None
        The register tile, where it is chosen together with the parts.
    together : int or None
        Panels of a task, where they are chosen together with the parts.
    apart : bool
        The products of all filters come before all results, and a task is a panel at a point, then a filter; else a
        task has products and results of some panels.
    """

    rows: int
    outside: bool
    cycles: float
    share: float
    parts: int = 1
    tile: Tile | None = None
    together: int | None = None
    apart: bool = False


@dataclass(frozen=True, eq=False)
class WinogradPlan:
    """How a convolution is run.

    Attributes
    ----------
    windows : Windows
    result : int
        Lines, and columns, of the results of a tile.
    params : CpuParams
    """

    windows: Windows
    result: int
    params: CpuParams

    copies: ClassVar[bool] = True
    """Whether pixels are taken apart before they are transformed, and put together after it."""

    # -- sizes ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Lines, and columns, of a tile."""
        return self.result + WINDOW - 1

    @property
    def points(self) -> int:
        """Elements of a tile, each of which is a product of matrices."""
        return self.size**2

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Lines and columns of the result."""
        extents = self.windows.contraction.reduction.extents
        return tuple(extents[v] for v in self.windows.image.columns)

    @cached_property
    def filters(self) -> int:
        """Channels of the result, in a group."""
        return self.windows.extent(self.windows.contraction.rows)

    @cached_property
    def channels(self) -> int:
        """Channels of the image, in a group."""
        return self.windows.extent(self.windows.channels)

    @cached_property
    def pictures(self) -> int:
        """Images times groups."""
        return self.windows.extent(self.windows.outer)

    @property
    def down(self) -> int:
        """Rows of tiles."""
        return -(-self.sizes[0] // self.result)

    @property
    def across(self) -> int:
        """Tiles in a row."""
        return -(-self.sizes[1] // self.result)

    # -- blocks --------------------------------------------------------------------------------------------------

    @cached_property
    def division(self) -> Division:
        """Blocks, and threads: few rows in a block read the weights again and again, many leave the cache."""
        return min(self._divisions(), key=lambda each: (each.cycles, -each.rows))

    def _divisions(self) -> Iterator[Division]:
        waking = WAKE * self.threads if self.parallel else 0
        for rows in range(1, self.down + 1):
            share = self._share(self._tasks(rows))
            yield Division(rows, self.parallel, self.pictures * self.block_cycles(rows) * share + waking, share)
        if self.parallel:
            yield from self._inside()

    def _inside(self) -> Iterator[Division]:
        """Blocks one after the other; of each the channels, then the filters, are spread over the threads."""
        for rows in range(1, self.down + 1):
            panels, together = self._panels(rows), self._together(rows, inside=True)
            chunks = -(-panels // together)
            share = min(1.0, -(-chunks // self.threads) * together / panels)
            waking, products = self._tasks(rows) * WAKE * self.threads, self.pictures * self.block_cycles(rows)
            yield Division(rows, False, products * share + 2 * waking, max(share, 1 / self.threads))
            sums = 2 * self._tasks(rows) * self._sums_bytes(rows, panels)
            cycles = products * self._share(self.points * panels) + sums / FAR_BYTES / self.threads + 3 * waking
            yield Division(rows, False, cycles, self._share(min(self.channels, self.filters)), apart=True)

    def _share(self, tasks: int) -> float:
        """Of so many tasks, what the busiest thread does."""
        return -(-tasks // self.threads) / tasks

    def _sums_bytes(self, rows: int, panels: int) -> int:
        """Bytes of the products of so many panels, with a block of so many rows of tiles."""
        return self.points * panels * self.tile_for(self._vectors(rows)).height * self._pitch(rows) * FLOAT_BYTES

    def _tasks(self, rows: int) -> int:
        """Blocks of so many rows of tiles, of all pictures."""
        return self.pictures * -(-self.down // rows)

    @property
    def rows(self) -> int:
        """Rows of tiles in a block."""
        return self.division.rows

    def block_cycles(self, rows: int) -> float:
        """Estimated cycles for the products of all blocks of a picture, of so many rows of tiles."""
        blocks, vectors = -(-self.down // rows), self._vectors(rows)
        tile = self.tile_for(vectors)
        depth, panels = self.points * self.channels, self._panels(rows)
        weights = depth * panels * tile.height * FLOAT_BYTES
        tiles = depth * vectors * self.params.lanes * FLOAT_BYTES
        sums = self.points * panels * tile.height * vectors * self.params.lanes * FLOAT_BYTES
        return blocks * depth * self.step_cycles(tile, vectors) + far_cycles(blocks, weights, tiles, sums)

    def _vectors(self, rows: int) -> int:
        return -(-rows * self.across // self.params.lanes)

    @property
    def blocks(self) -> int:
        """Blocks of a picture, the last of which may have rows that are not there."""
        return -(-self.down // self.rows)

    @property
    def tiles(self) -> int:
        """Tiles of a block."""
        return self.rows * self.across

    @property
    def vectors(self) -> int:
        """Vectors that the tiles of a block make up."""
        return self._vectors(self.rows)

    @cached_property
    def lanes(self) -> int:
        """Tiles that are transformed together: a vector, or a shorter one if the row of tiles is."""
        lanes = self.params.lanes
        while lanes > 4 and lanes // 2 >= self.across:
            lanes //= 2
        return lanes

    @property
    def strips(self) -> int:
        """Vectors of `lanes` in a row of tiles; the last one may go on into the next row."""
        return -(-self.across // self.lanes)

    @cached_property
    def pitch(self) -> int:
        """Elements from channel to channel of what is computed of the tiles of a block: whole vectors."""
        return self._pitch(self.rows)

    def _pitch(self, rows: int) -> int:
        reach, lanes = (rows - 1) * self.across + self.strips * self.lanes, self.params.lanes
        return -(-max(reach, self._vectors(rows) * lanes) // lanes) * lanes

    # -- products ------------------------------------------------------------------------------------------------

    @property
    def tile(self) -> Tile:
        """The register tile: filters, and places in a block."""
        return self.tile_for(self.vectors)

    @cached_property
    def tile_for(self) -> Callable[[int], Tile]:
        """The register tile for blocks of so many vectors; it is searched once."""
        return cache(self._tile_for)

    def _tile_for(self, vectors: int) -> Tile:
        lanes = self.params.lanes
        candidates = [
            Tile(height, wide * lanes)
            for height in _heights(self.filters)
            for wide in range(1, min(vectors, _MOST_VECTORS) + 1)
            if fits(height, wide * lanes, self.params)
        ]

        def time(height: int, wide: int) -> float:
            return cycles(height, wide * lanes, self.params)

        return min(candidates, key=lambda tile: (self._over(tile, vectors, time), -tile.height * tile.width))

    def step_cycles(self, tile: Tile, vectors: int) -> float:
        """Estimated cycles of one step along the depth, for all filters and `vectors` of places."""
        return self._over(tile, vectors, _step)

    def _over(self, tile: Tile, vectors: int, step: Callable[[int, int], float]) -> float:
        """The sum of `step` over the register tiles, by their heights and vectors."""
        wide = tile.width // self.params.lanes
        parts = ((wide, vectors // wide), (vectors % wide, 1))
        return -(-self.filters // tile.height) * sum(count * step(tile.height, n) for n, count in parts if n)

    @property
    def panel(self) -> int:
        """Filters of a panel."""
        return self.tile.height

    @property
    def panels(self) -> int:
        """Groups of `panel` filters; the last one is filled up with zeros."""
        return -(-self.filters // self.panel)

    def _panels(self, rows: int) -> int:
        return -(-self.filters // self.tile_for(self._vectors(rows)).height)

    @cached_property
    def together(self) -> int:
        """Panels whose products are transformed back together."""
        return self._together(self.rows, self.parallel_inside)

    def _together(self, rows: int, inside: bool) -> int:
        panels = self._panels(rows)
        most = max(1, SUMS_BYTES // self._sums_bytes(rows, 1))
        if inside:
            most = min(most, max(1, panels // self.threads))
        return -(-panels // -(-panels // most))

    # -- threads -------------------------------------------------------------------------------------------------

    @property
    def parallel(self) -> bool:
        """Whether the work is worth waking the threads."""
        work = self.windows.contraction.reduction.work
        return self.params.cores > 1 and work >= self.params.serial_below

    @property
    def threads(self) -> int:
        """Threads that have work."""
        return self.params.cores if self.parallel else 1

    @property
    def parallel_outside(self) -> bool:
        """Whether the threads take pictures and blocks."""
        return self.parallel and self.division.outside

    @property
    def parallel_inside(self) -> bool:
        """Whether what is to be done in a block is spread over the threads."""
        return self.parallel and not self.division.outside


def _heights(filters: int) -> list[int]:
    return [n for n in (4, 6, 8, 10, 12, 14, 16, 20, 24, 28) if n <= max(4, filters)]


def _step(height: int, vectors: int) -> float:
    """Cycles, in vectors that are multiplied in one: products, loads, and the wait for the previous step."""
    return max(height * vectors, 0.5 * height + vectors, 4.0)
