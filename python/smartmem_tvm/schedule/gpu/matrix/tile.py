# SPDX-License-Identifier: Apache-2.0
"""Tiles of a product by matrix instructions, as data, and the cost model that chooses one for a shape."""

from __future__ import annotations

from dataclasses import dataclass

from ..occupancy import WARP
from . import instructions as ptx

_PAIR = 16  # columns that one ldmatrix brings
_FLOAT, _HALF = 4, 2  # bytes


@dataclass(frozen=True)
class MatrixTile:
    """How a group of warps computes its part of a product.

    Attributes
    ----------
    rows, columns : int
        Results of a group.
    depth : int
        Terms of a stage.
    warp_rows, warp_columns : int
        Results of a warp; multiples of 16.
    stages : int
        Tiles of terms that are in shared memory or on their way at a time.
    slices : int
        Parts into which a group divides the terms of a stage, each with warps of its own for all results.
    splits : int
        Groups among which the terms of one tile are divided; above 1, a second kernel adds their sums.
    band : int
        Tiles along the columns of a band (`gpu_group_order`); 0 for all of them.
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
        """Warps of a group."""
        return self.warps_down * self.warps_across * self.slices

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.warps * WARP

    @property
    def steps(self) -> int:
        """Instructions along the terms of a stage that each slice takes."""
        return self.depth // (ptx.TERMS * self.slices)

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
        """Floats from row to row where results pass through shared memory."""
        return self.columns + 8

    @property
    def result_rows(self) -> int:
        """Rows that pass through shared memory at a time, of all slices."""
        return self.slices * self.warps_down * ptx.ROWS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a group: the stages of both operands, later results."""
        stage = (self.rows + self.columns) * self.depth
        return max(_HALF * stage * self.stages, _FLOAT * self.result_rows * self.result_pitch)
