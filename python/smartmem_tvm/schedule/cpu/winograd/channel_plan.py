# SPDX-License-Identifier: Apache-2.0
"""The plan of a convolution by transformed tiles whose channels lie innermost: vectors are channels, not tiles."""

from __future__ import annotations

from functools import cached_property

from ..tile import Tile, best_tile, total_cycles
from .plan import AT_ONCE, FLOAT_BYTES, SUMS_BYTES, WinogradPlan, far_cycles


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

    @property
    def _places(self) -> int:
        """Filters, those included that fill the last vector."""
        return -(-self.filters // self.params.lanes) * self.params.lanes

    def _tile(self, tiles: int) -> Tile:
        return best_tile(tiles, self._places, self.params, self.channels)

    @cached_property
    def tile(self) -> Tile:
        """The register tile: tiles, and filters."""
        return self._tile(self.tiles)

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
        if not self.parallel_outside and self.parallel:
            most = min(most, max(1, self.panels // self.params.cores))
        return -(-self.panels // -(-self.panels // most))
