# SPDX-License-Identifier: Apache-2.0
"""The plan of a Winograd convolution: results of a tile, block of tiles, register tile, threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import ClassVar

from ..cost import THIRD_LEVEL, AtPoints, Fma, PointFma
from ..machine import FLOAT_BYTES, SECOND_LEVEL_BYTES
from ..params import CpuParams
from ..priced_work import Done, Rates, Threads
from ..tile import Tile, fits
from .shape import Windows
from .transforms import WINDOW

BLOCK_BYTES = SECOND_LEVEL_BYTES // 2  # of transformed tiles
SUMS_BYTES = SECOND_LEVEL_BYTES // 4  # of the products of a group of filters
_MOST_VECTORS = 6  # vectors in a row of a register tile. Chosen: no times were kept (2026-11-24)


def far_bytes(blocks: int, weights: int, tiles: int, sums: int) -> int:
    """Return the bytes that come from the third-level cache, by those of all weights, a block's tiles and sums.

    The first read of the weights is not counted.
    """
    chunks = -(-sums // SUMS_BYTES)
    again = tiles * (1 + chunks) if tiles > BLOCK_BYTES else 0
    return (blocks - 1) * weights + blocks * again


def work_of(products: Sequence[Done], far: float, woken: Done) -> dict[str, Sequence[Done]]:
    """Return the work of a division by terms: products, bytes from the third-level cache, threads to wake."""
    return {
        "products at all points": products,
        "third-level cache": [(far, AtPoints(THIRD_LEVEL))],
        "threads to wake": [woken],
    }


@dataclass(frozen=True)
class Division:
    """The division of a Winograd convolution into blocks, and among threads.

    Attributes
    ----------
    rows : int
        Rows of tiles in a block.
    outside : bool
        Blocks are divided among the threads; else all threads work on one block after the other.
    work : mapping of str to sequence of Done
        The work until the last thread finishes its products, by terms.
    share : float
        The busiest thread's share of all transforms, from 0 to 1.
    parts : int
        Number of parts of a block's rows; the products of a part are a task.
    tile : Tile or None
        The register tile, if it is chosen together with the parts.
    together : int or None
        Panels of a task, if they are chosen together with the parts.
    apart : bool
        All products come first, with a panel at a point as a task, and then all results, with a filter as a task;
        else a task has the products and results of some panels.
    """

    rows: int
    outside: bool
    work: Mapping[str, Sequence[Done]] = field(compare=False)
    share: float
    parts: int = 1
    tile: Tile | None = None
    together: int | None = None
    apart: bool = False


@dataclass(frozen=True, eq=False)
class WinogradPlan:
    """The plan of a Winograd convolution.

    Attributes
    ----------
    windows : Windows
    result : int
        Lines, and columns, of the results of a tile: m of F(m x m, 3 x 3).
    params : CpuParams
    given_panel : int or None
        Filters of a panel, if they are given.
    """

    windows: Windows
    result: int
    params: CpuParams
    given_panel: int | None = None

    copies: ClassVar[bool] = True
    """Whether pixels are copied into planes before the transform, and back into lines after it."""

    # -- sizes ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of lines, and of columns, of a tile."""
        return self.result + WINDOW - 1

    @property
    def points(self) -> int:
        """Number of elements of a tile, each of which is a GEMM of its own."""
        return self.size**2

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Number of lines and of columns of the result."""
        extents = self.windows.contraction.reduction.extents
        return tuple(extents[v] for v in self.windows.image.columns)

    @cached_property
    def filters(self) -> int:
        """Number of channels of the result, in a group."""
        return self.windows.extent(self.windows.contraction.rows)

    @cached_property
    def channels(self) -> int:
        """Number of channels of the image, in a group."""
        return self.windows.extent(self.windows.channels)

    @cached_property
    def pictures(self) -> int:
        """Number of images times groups."""
        return self.windows.extent(self.windows.outer)

    @property
    def down(self) -> int:
        """Number of rows of tiles."""
        return -(-self.sizes[0] // self.result)

    @property
    def across(self) -> int:
        """Number of tiles in a row."""
        return -(-self.sizes[1] // self.result)

    # -- blocks --------------------------------------------------------------------------------------------------

    @cached_property
    def division(self) -> Division:
        """The fastest division; small blocks read the weights more often, and large ones do not fit in the cache."""
        rates = Rates(self.params)

        def order(each: Division) -> tuple[float, int]:
            return rates.sum_of(chain(*each.work.values())), -each.rows

        return min(self._divisions(), key=order)

    def _divisions(self) -> Iterator[Division]:
        threads = Threads(self.threads)
        for rows in range(1, self.down + 1):
            share = threads.share(self._tasks(rows))
            products, far = self._block(rows, self.pictures * share)
            yield Division(rows, self.parallel, work_of(products, far, threads.woken_at_points()), share)
        if self.parallel:
            yield from self._inside()

    def _inside(self) -> Iterator[Division]:
        """Yield divisions with one block after the other, whose channels, then filters, the threads share."""
        threads = Threads(self.threads)
        for rows in range(1, self.down + 1):
            panels, together, tasks = self._panels(rows), self._together(rows, inside=True), self._tasks(rows)
            share = min(1.0, threads.rounds(-(-panels // together)) * together / panels)
            products, far = self._block(rows, self.pictures * share)
            work = work_of(products, far, threads.woken_at_points(2 * tasks))
            yield Division(rows, False, work, max(share, 1 / self.threads))
            products, far = self._block(rows, self.pictures * threads.share(self.points * panels))
            sums = 2 * tasks * self._sums_bytes(rows, panels) / self.threads
            work = work_of(products, far + sums, threads.woken_at_points(3 * tasks))
            yield Division(rows, False, work, threads.share(min(self.channels, self.filters)), apart=True)

    def _sums_bytes(self, rows: int, panels: int) -> int:
        """Return the bytes of the products of `panels` panels with a block of `rows` rows of tiles."""
        return self.points * panels * self.tile_for(self._vectors(rows)).height * self._pitch(rows) * FLOAT_BYTES

    def _tasks(self, rows: int) -> int:
        """Return the number of blocks of `rows` rows of tiles, of all pictures."""
        return self.pictures * -(-self.down // rows)

    @property
    def rows(self) -> int:
        """Number of rows of tiles in a block."""
        return self.division.rows

    def _block(self, rows: int, times: float) -> tuple[list[Done], float]:
        """Return the products of all blocks of a picture, with `rows` rows of tiles each, and their far bytes."""
        blocks, vectors = -(-self.down // rows), self._vectors(rows)
        tile = self.tile_for(vectors)
        depth, panels = self.points * self.channels, self._panels(rows)
        weights = depth * panels * tile.height * FLOAT_BYTES
        tiles = depth * vectors * self.params.lanes * FLOAT_BYTES
        sums = self.points * panels * tile.height * vectors * self.params.lanes * FLOAT_BYTES
        products = self._steps(tile, vectors, PointFma, times * blocks * depth)
        return products, times * far_bytes(blocks, weights, tiles, sums)

    def _vectors(self, rows: int) -> int:
        return -(-rows * self.across // self.params.lanes)

    @property
    def blocks(self) -> int:
        """Number of blocks of a picture; the last one may have surplus rows."""
        return -(-self.down // self.rows)

    @property
    def tiles(self) -> int:
        """Number of tiles of a block."""
        return self.rows * self.across

    @property
    def vectors(self) -> int:
        """Number of vectors of a block's tiles."""
        return self._vectors(self.rows)

    @cached_property
    def lanes(self) -> int:
        """Tiles that are transformed together: a vector, or a shorter one for a short row of tiles."""
        lanes = self.params.lanes
        while lanes > 4 and lanes // 2 >= self.across:
            lanes //= 2
        return lanes

    @property
    def strips(self) -> int:
        """Number of vectors of `lanes` in a row of tiles; the last one may extend into the next row."""
        return -(-self.across // self.lanes)

    @cached_property
    def pitch(self) -> int:
        """Elements from channel to channel of a block's transformed tiles: whole vectors."""
        return self._pitch(self.rows)

    def _pitch(self, rows: int) -> int:
        reach, lanes = (rows - 1) * self.across + self.strips * self.lanes, self.params.lanes
        return -(-max(reach, self._vectors(rows) * lanes) // lanes) * lanes

    # -- products ------------------------------------------------------------------------------------------------

    @property
    def tile(self) -> Tile:
        """The register tile, in filters and tiles of a block."""
        return self.tile_for(self.vectors)

    @cached_property
    def tile_for(self) -> Callable[[int], Tile]:
        """A cached function: number of vectors of a block -> the register tile."""
        return cache(self._tile_for)

    def _tile_for(self, vectors: int) -> Tile:
        lanes = self.params.lanes
        candidates = [
            Tile(height, wide * lanes)
            for height in ([self.given_panel] if self.given_panel else _heights(self.filters))
            for wide in range(1, min(vectors, _MOST_VECTORS) + 1)
            if fits(height, wide * lanes, self.params)
        ]

        rates = Rates(self.params)

        def order(tile: Tile) -> tuple[float, int]:
            return rates.sum_of(self._steps(tile, vectors, Fma)), -tile.height * tile.width

        return min(candidates, key=order)

    def _steps(self, tile: Tile, vectors: int, kind: type[Fma | PointFma], times: float = 1) -> list[Done]:
        """Return `times` steps along the depth, for all filters and `vectors` vectors of tiles."""
        wide, high = tile.width // self.params.lanes, -(-self.filters // tile.height)
        strips = ((wide, vectors // wide), (vectors % wide, 1))
        return [(times * high * count, kind(tile.height, n)) for n, count in strips if n]

    @property
    def panel(self) -> int:
        """Number of filters of a panel."""
        return self.tile.height

    @property
    def panels(self) -> int:
        """Number of panels; the last one is padded with zeros."""
        return -(-self.filters // self.panel)

    def _panels(self, rows: int) -> int:
        return -(-self.filters // self.tile_for(self._vectors(rows)).height)

    @cached_property
    def together(self) -> int:
        """Number of panels whose products are transformed back together."""
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
        """Whether the work is large enough to wake the threads."""
        work = self.windows.contraction.reduction.work
        return self.params.cores > 1 and work >= self.params.serial_below

    @property
    def threads(self) -> int:
        """Number of threads that have work."""
        return self.params.cores if self.parallel else 1

    @property
    def parallel_outside(self) -> bool:
        """Whether pictures and blocks are divided among the threads."""
        return self.parallel and self.division.outside

    @property
    def parallel_inside(self) -> bool:
        """Whether the work of each block is divided among the threads."""
        return self.parallel and not self.division.outside


def _heights(filters: int) -> list[int]:
    return [n for n in (4, 6, 8, 10, 12, 14, 16, 20, 24, 28) if n <= max(4, filters)]
