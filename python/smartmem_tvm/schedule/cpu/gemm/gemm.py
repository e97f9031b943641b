# SPDX-License-Identifier: Apache-2.0
"""The loops of a product around a micro-kernel: the skeleton of all products on CPUs.

    for each strip of the columns:                   of the rows, if `rows_outside`
      the micro-kernel's `line`: a copy of the panel if it needs one, and for each part of the depth
        for each strip of the rows:
          the micro-kernel's `tile`: sums of the products, then the epilogue

The operand of the outer loop stays in the caches near the core while the inner loop goes over the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tvm import tirx

from ...core.nest import Scope, index
from .axis import Axis, Strip

Tile = Callable[[Strip, Strip], tirx.Stmt]
"""Rows and columns -> the statements of one tile of results."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the depth.

    Attributes
    ----------
    first : PrimExpr
        Its first step.
    length : int
        Its steps.
    before, after : callable or None
        Rows and columns of a tile -> the place of sums, in a form of the micro-kernel's own: those that it starts from,
        and where they go. It starts from the product's start values if `before` is None, and finishes the results if
        `after` is None.
    """

    first: tirx.PrimExpr
    length: int
    before: Callable | None = None
    after: Callable | None = None


class MicroKernel(Protocol):
    """Tiles of results by one instruction set, with the operands and the epilogue of one product."""

    def line(self, held: Strip, each: Callable[[Tile], tirx.Stmt]) -> tirx.Stmt:
        """Return the tiles of one strip of the outer axis; ``each(tile)`` goes over the strips of the inner one."""


@dataclass(frozen=True, eq=False)
class Gemm:
    """A product of one task: its rows and columns, and the micro-kernel that computes a tile of both.

    Attributes
    ----------
    rows_outside : bool
        Whether the outer loop is over the rows.
    """

    scope: Scope
    micro: MicroKernel
    rows: Axis
    columns: Axis
    rows_outside: bool = False

    def nest(self) -> tirx.Stmt:
        """Return the loop nest."""
        outer, inner = (self.rows, self.columns) if self.rows_outside else (self.columns, self.rows)

        def line(held: Strip) -> tirx.Stmt:
            def each(tile: Tile) -> tirx.Stmt:
                if self.rows_outside:
                    return inner.each(self.scope, lambda columns: tile(held, columns))
                return inner.each(self.scope, lambda rows: tile(rows, held))

            return self.micro.line(held, each)

        return outer.each(self.scope, line, "panel")


def in_parts(
    scope: Scope, lengths: tuple[int, int, int], kept: Callable, over: Callable[[Part], tirx.Stmt], begun: bool
) -> list[tirx.Stmt | None]:
    """Return ``over(part)`` for each part of the depth.

    Parameters
    ----------
    lengths : tuple of int
        Number of parts, steps of each, and steps of the whole depth; the last part may be shorter.
    kept : callable
        The place of sums between parts, see `Part`.
    begun : bool
        Whether the first part starts from sums that are kept already.
    """
    parts, length, depth = lengths
    first, last = int(not begun), (parts - 1) * length

    def between(p) -> tirx.Stmt:
        return over(Part((p + index(first)) * index(length), length, kept, kept))

    begins = None if begun else over(Part(index(0), length, after=kept))
    count = parts - 1 - first
    middle = scope.loop(count, between, "part") if count else None
    return [begins, middle, over(Part(index(last), depth - last, before=kept))]
