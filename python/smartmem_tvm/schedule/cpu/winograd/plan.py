# SPDX-License-Identifier: Apache-2.0
"""Decide how a convolution is done by transformed tiles: results of a tile, block of tiles, register tile, threads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..params import CpuParams
from ..tile import Tile, fits
from .shape import Windows
from .transforms import WINDOW

_FLOAT_BYTES = 4
_BLOCK_BYTES = 768 * 1024  # of transformed tiles: most of a second-level cache
_SUMS_BYTES = 256 * 1024  # of the products of a group of filters


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
    def rows(self) -> int:
        """Rows of tiles in a block: those that fit the cache and leave the fewest lanes empty."""
        per_tile = self.points * self.channels * _FLOAT_BYTES
        most = max(1, min(self.down, _BLOCK_BYTES // (per_tile * self.across)))
        least = min(most, max(1, -(-self.params.lanes // self.across)))
        return min(range(least, most + 1), key=lambda n: (-(-self.down // n) * self._vectors(n), -n))

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
        reach = (self.rows - 1) * self.across + self.strips * self.lanes
        return -(-max(reach, self.vectors * self.params.lanes) // self.params.lanes) * self.params.lanes

    # -- products ------------------------------------------------------------------------------------------------

    @cached_property
    def tile(self) -> Tile:
        """The register tile: filters, and places in a block."""
        candidates = [
            Tile(height, vectors * self.params.lanes)
            for height in _heights(self.filters)
            for vectors in range(1, min(self.vectors, 6) + 1)
            if fits(height, vectors * self.params.lanes, self.params)
        ]
        return min(candidates, key=lambda tile: (self.product_cycles(tile), -tile.height * tile.width))

    def product_cycles(self, tile: Tile) -> float:
        """Estimated cycles of one step along the depth, for all filters and places of a block."""
        lanes, total = self.params.lanes, 0.0
        wide = tile.width // lanes
        for vectors, count in ((wide, self.vectors // wide), (self.vectors % wide, 1)):
            total += count * _step(tile.height, vectors) if vectors else 0
        return -(-self.filters // tile.height) * total

    @property
    def panels(self) -> int:
        """Groups of `tile.height` filters; the last one is filled up with zeros."""
        return -(-self.filters // self.tile.height)

    @cached_property
    def together(self) -> int:
        """Panels whose products are transformed back together."""
        per_panel = self.points * self.tile.height * self.pitch * _FLOAT_BYTES
        most = max(1, _SUMS_BYTES // per_panel)
        if not self.parallel_outside and self.parallel:
            most = min(most, max(1, self.panels // self.params.cores))
        return -(-self.panels // -(-self.panels // most))

    # -- threads -------------------------------------------------------------------------------------------------

    @property
    def parallel(self) -> bool:
        """Whether the work is worth waking the threads."""
        work = self.windows.contraction.reduction.work
        return self.params.cores > 1 and work >= self.params.serial_below

    @property
    def parallel_outside(self) -> bool:
        """Whether pictures and blocks are enough tasks; else channels, then filters, are spread over the threads."""
        return self.pictures * self.blocks >= 2 * self.params.cores


def _heights(filters: int) -> list[int]:
    return [n for n in (4, 6, 8, 10, 12, 14, 16, 20, 24, 28) if n <= max(4, filters)]


def _step(height: int, vectors: int) -> float:
    """Cycles, in vectors that are multiplied in one: products, loads, and the wait for the previous step."""
    return max(height * vectors, 0.5 * height + vectors, 4.0)
