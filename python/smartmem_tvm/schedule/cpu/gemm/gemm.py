# SPDX-License-Identifier: Apache-2.0
"""The loops of a product around a micro-kernel: the skeleton of all products on CPUs (BLIS: the macro-kernel).

    for each strip of the outer axis:                columns, or rows if `rows_outside`
      the micro-kernel's `sweep`: copies the panel if it needs a copy; then, for each part of the depth,
        for each strip of the inner axis:
          the micro-kernel's `tile`: the sums of one register tile, then the epilogue

The operand of the outer strip is read again for each strip of the inner axis, and meanwhile stays in the core's caches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tvm import tirx

from ...core.nest import Scope, index
from .axis import Axis, Strip

WriteTile = Callable[[Strip, Strip], tirx.Stmt]
"""Strip of rows, strip of columns -> the statements of the tile of results where they cross."""


@dataclass(frozen=True, eq=False)
class DepthPart:
    """A part of the depth: a range of steps k.

    Attributes
    ----------
    first : PrimExpr
        Number of its first step.
    length : int
        Number of its steps.
    before, after : callable or None
        Rows and columns of a tile -> where its partial sums are loaded from at the beginning of the part, and stored to
        at the end, in the micro-kernel's own form. If `before` is None, the sums begin with the product's start values;
        if `after` is None, this is the last part, and the epilogue follows.
    """

    first: tirx.PrimExpr
    length: int
    before: Callable | None = None
    after: Callable | None = None


class MicroKernel(Protocol):
    """Writes tiles of results in one instruction set, for the operands and the epilogue of one product."""

    def sweep(self, outer: Strip, each: Callable[[WriteTile], tirx.Stmt]) -> tirx.Stmt:
        """Return the tiles of a strip of the outer axis; ``each(tile)`` is the loop over strips of the inner one."""


@dataclass(frozen=True, eq=False)
class Gemm:
    """What one task computes of a product: its rows and columns, and the micro-kernel for a tile of them.

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
        outer_axis, inner_axis = (self.rows, self.columns) if self.rows_outside else (self.columns, self.rows)

        def sweep(outer: Strip) -> tirx.Stmt:
            def each(tile: WriteTile) -> tirx.Stmt:
                if self.rows_outside:
                    return inner_axis.each(self.scope, lambda columns: tile(outer, columns))
                return inner_axis.each(self.scope, lambda rows: tile(rows, outer))

            return self.micro.sweep(outer, each)

        return outer_axis.each(self.scope, sweep, "panel")


def in_parts(
    scope: Scope,
    lengths: tuple[int, int, int],
    partial_sums: Callable,
    over: Callable[[DepthPart], tirx.Stmt],
    begun: bool,
) -> list[tirx.Stmt | None]:
    """Return ``over(part)`` for the first part of the depth, those between (a loop), and the last; None for no part.

    Parameters
    ----------
    lengths : tuple of int
        Number of parts, steps of each, and steps of the whole depth; the last part may be shorter.
    partial_sums : callable
        Where the partial sums of a tile are between parts: `before` and `after` of `DepthPart`.
    begun : bool
        Whether the first part also loads its sums from there, where the caller has stored the start values.
    """
    parts, length, depth = lengths
    first, last = int(not begun), (parts - 1) * length

    def between(p) -> tirx.Stmt:
        return over(DepthPart((p + index(first)) * index(length), length, partial_sums, partial_sums))

    begins = None if begun else over(DepthPart(index(0), length, after=partial_sums))
    count = parts - 1 - first
    middle = scope.loop(count, between, "part") if count else None
    return [begins, middle, over(DepthPart(index(last), depth - last, before=partial_sums))]
