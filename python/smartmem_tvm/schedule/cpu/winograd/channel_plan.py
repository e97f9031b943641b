# SPDX-License-Identifier: Apache-2.0
"""The plan of a convolution by transformed tiles whose channels lie innermost: vectors are channels, not tiles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from ..tile import Tile, best_tile, tile_widths, total_cycles
from .plan import AT_ONCE, BLOCK_BYTES, FAR_BYTES, FLOAT_BYTES, SUMS_BYTES, WAKE, Division, WinogradPlan, far_cycles


class ChannelPlan(WinogradPlan):
    """How such a convolution is run: products have tiles as rows and filters as columns."""

    copies = False

    def block_cycles(self, rows: int) -> float:
        """Estimated cycles for the products of all blocks of so many rows of tiles."""
        blocks, tiles, lanes = -(-self.down // rows), rows * self.across, self.params.lanes
        depth, tile = self.points * self.channels, self._tile(tiles)
        step = total_cycles(tile, tiles, self._places, self.params, self.channels)
        weights, left = (depth * each * FLOAT_BYTES for each in (self._places, tiles))
        sums = self.points * self._places * tiles * FLOAT_BYTES
        # In steps of a vector each, as `WinogradPlan` counts them.
        return blocks * depth * step * AT_ONCE / lanes + far_cycles(blocks, weights, left, sums)

    def _inside(self) -> Iterator[Division]:
        """A picture at a time, if all caches hold its tiles; tasks are some rows of tiles and some panels."""
        threads, depth = self.threads, self.points * self.channels
        for width in tile_widths(self.params):
            if self.filters % width:  # the last panel would be another loop, and another shape
                continue
            panels = self.filters // width
            for rows in sorted({-(-self.down // parts) for parts in range(1, min(self.down, 2 * threads) + 1)}):
                parts, tiles = -(-self.down // rows), rows * self.across
                tile = best_tile(tiles, width, self.params, self.channels, (width,))
                step = total_cycles(tile, tiles, width, self.params, self.channels)
                held = parts * tiles * depth * FLOAT_BYTES
                if held > threads * BLOCK_BYTES:
                    continue
                for together in (n for n in range(1, panels + 1) if panels % n == 0):
                    sums = self.points * tiles * width * together * FLOAT_BYTES
                    if sums > SUMS_BYTES and together > 1:
                        break
                    far = depth * (together * width + tiles) * FLOAT_BYTES + (2 * sums if sums > SUMS_BYTES else 0)
                    task = together * depth * step * AT_ONCE / self.params.lanes + far / FAR_BYTES
                    turns = -(-parts * panels // together // threads)
                    cycles = self.pictures * (held / FAR_BYTES / threads + turns * task + 2 * WAKE * threads)
                    yield Division(parts * rows, False, cycles, 1 / threads, parts, tile, together)

    @property
    def _places(self) -> int:
        """Filters, those included that fill the last vector."""
        return -(-self.filters // self.params.lanes) * self.params.lanes

    def _tile(self, tiles: int) -> Tile:
        return best_tile(tiles, self._places, self.params, self.channels)

    @cached_property
    def tile(self) -> Tile:
        """The register tile: tiles, and filters."""
        return self.division.tile or self._tile(self.tiles)

    @property
    def panel(self) -> int:
        """Filters of a panel."""
        return self.tile.width

    @property
    def lanes(self) -> int:
        """Channels that are transformed together."""
        return self.params.lanes

    @property
    def strips(self) -> float:
        """Vectors that a row of tiles makes up, for each channel."""
        return self.across / self.params.lanes

    @cached_property
    def pitch(self) -> int:
        """Elements from tile to tile of what is multiplied: whole vectors."""
        return -(-self.channels // self.params.lanes) * self.params.lanes

    @cached_property
    def together(self) -> int:
        """Panels whose products are transformed back together."""
        most = max(1, SUMS_BYTES // (self.points * self.tiles * self.panel * FLOAT_BYTES))
        return self.division.together or -(-self.panels // -(-self.panels // most))

    @property
    def parts(self) -> int:
        """Parts of the rows of a block, whose products are transformed back together."""
        return self.division.parts
