# SPDX-License-Identifier: Apache-2.0
"""The plan of a Winograd convolution whose channels are innermost: the SIMD lanes are channels, not tiles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from ..machine import FLOAT_BYTES
from ..priced_work import Done, Threads
from ..tile import Tile, best_tile, steps_of, tile_widths
from .plan import BLOCK_BYTES, SUMS_BYTES, Division, WinogradPlan, far_bytes, work_of


class ChannelPlan(WinogradPlan):
    """The plan of such a convolution: its products have tiles as rows and filters as columns."""

    copies = False

    def _block(self, rows: int, times: float) -> tuple[list[Done], float]:
        """Return the products of all blocks of `rows` rows of tiles, and their far bytes."""
        blocks, tiles = -(-self.down // rows), rows * self.across
        depth, tile = self.points * self.channels, self._tile(tiles)
        products = steps_of(tile, tiles, self._places, self.params, self.channels, times=times * blocks * depth)
        weights, left = (depth * each * FLOAT_BYTES for each in (self._places, tiles))
        sums = self.points * self._places * tiles * FLOAT_BYTES
        return products, times * far_bytes(blocks, weights, left, sums)

    def _inside(self) -> Iterator[Division]:
        """Yield divisions of one picture at a time, if all caches together hold its tiles.

        A task has some rows of tiles and some panels.
        """
        threads, depth = Threads(self.threads), self.points * self.channels
        for width in self._widths or tile_widths(self.params):
            if self.filters % width:  # the last panel would be another loop, and another shape
                continue
            panels = self.filters // width
            for rows in sorted({-(-self.down // parts) for parts in range(1, min(self.down, 2 * threads.count) + 1)}):
                parts, tiles = -(-self.down // rows), rows * self.across
                tile = best_tile(tiles, width, self.params, self.channels, (width,))
                held = parts * tiles * depth * FLOAT_BYTES
                if held > threads.count * BLOCK_BYTES:
                    continue
                for together in (n for n in range(1, panels + 1) if panels % n == 0):
                    sums = self.points * tiles * width * together * FLOAT_BYTES
                    if sums > SUMS_BYTES and together > 1:
                        break
                    far = depth * (together * width + tiles) * FLOAT_BYTES + (2 * sums if sums > SUMS_BYTES else 0)
                    turns = self.pictures * threads.rounds(parts * panels // together)
                    sizes = tile, tiles, width, self.params, self.channels
                    products = steps_of(*sizes, times=turns * together * depth)
                    read = self.pictures * held / threads.count + turns * far
                    work = work_of(products, read, threads.woken_at_points(2 * self.pictures))
                    yield Division(parts * rows, False, work, 1 / threads.count, parts, tile, together)

    @property
    def _places(self) -> int:
        """Number of filters, rounded up to whole vectors."""
        return -(-self.filters // self.params.lanes) * self.params.lanes

    def _tile(self, tiles: int) -> Tile:
        return best_tile(tiles, self._places, self.params, self.channels, self._widths)

    @property
    def _widths(self) -> tuple[int, ...]:
        return (self.given_panel,) if self.given_panel else ()

    @cached_property
    def tile(self) -> Tile:
        """The register tile, in tiles and filters."""
        return self.division.tile or self._tile(self.tiles)

    @property
    def panel(self) -> int:
        """Number of filters of a panel."""
        return self.tile.width

    @property
    def lanes(self) -> int:
        """Number of channels that are transformed together."""
        return self.params.lanes

    @property
    def strips(self) -> float:
        """Number of vectors of a row of tiles, for each channel."""
        return self.across / self.params.lanes

    @cached_property
    def pitch(self) -> int:
        """Elements from tile to tile of the transformed tiles: whole vectors."""
        return -(-self.channels // self.params.lanes) * self.params.lanes

    @cached_property
    def together(self) -> int:
        """Number of panels whose products are transformed back together."""
        most = max(1, SUMS_BYTES // (self.points * self.tiles * self.panel * FLOAT_BYTES))
        return self.division.together or -(-self.panels // -(-self.panels // most))

    @property
    def parts(self) -> int:
        """Number of parts of a block's rows; the products of a part are transformed back together."""
        return self.division.parts
