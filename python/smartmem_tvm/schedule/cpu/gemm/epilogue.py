# SPDX-License-Identifier: Apache-2.0
"""Epilogues: the start values of sums, and the use of the finished ones.

`contraction_epilogue` has that of a contraction, `chain_product` that of a product in a chain of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tvm import tirx

from ....ir.blends import branches
from ...core.expressions import size
from .axis import Strip

# Nodes of an epilogue, up to which it is computed on the registers. Chosen: bias, scale and clamp are fewer; a longer
# one would be written out for each vector of the tile.
_SMALL = 12


def fits_registers(value) -> bool:
    """Whether the expression of an epilogue is short, and without branches, so that registers hold its values."""
    return size(value) <= _SMALL and not branches(value)


class Epilogue(Protocol):
    """The start values of sums, and the use of the finished ones."""

    start: tirx.PrimExpr

    def prefetched(self, rows: Strip, columns: Strip) -> tirx.Stmt | None:
        """Return prefetches of the places that results go to, or None."""

    def stays_in_registers(self, columns: Strip) -> bool:
        """Whether results are stored from the registers; else from a copy of the sums in scratch memory."""

    def element(self, value, row, column) -> tirx.Stmt:
        """Return the store of one result, given its sum."""

    def block(self, sums, rows: Strip, columns: Strip) -> tirx.Stmt:
        """Return the stores of all results of a tile, given scratch memory with its sums."""


@dataclass(frozen=True, eq=False)
class Stored:
    """The epilogue that only stores sums, from the registers: ``put(value, row, column)``."""

    put: Callable[..., tirx.Stmt]
    start: tirx.PrimExpr

    def prefetched(self, _rows: Strip, _columns: Strip) -> None:
        """Return None: no prefetch."""

    def stays_in_registers(self, _columns: Strip) -> bool:
        """Whether sums are stored from the registers: yes."""
        return True

    def element(self, value, row, column) -> tirx.Stmt:
        """Return the store of a sum."""
        return self.put(value, row, column)
