# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of multiply-adds: a register tile of sums, to which each step adds a column times a row.

    acc[height, width] = start                       registers
    for each step k: acc[i, j] += left[i, k] * right[k, j]
    result = finish(acc[i, j])

An element of the left operand is broadcast, and a row of the right one is read in vectors. So the left operand may lie
anywhere, and the right one has to be contiguous along the columns: in place, or in panels of the tile's width. Pairs of
integers and quads of bytes take the same loops with another instruction (`Accumulators.add_dots`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from ...core.nest import Scope, allocate, block, scratch, store
from ..prefetch import Prefetch
from .accumulators import Accumulators
from .axis import Strip
from .depth import Depth
from .epilogue import Epilogue
from .gemm import DepthPart, WriteTile
from .operands import DepthStep, Reader, Source


@dataclass(frozen=True, eq=False)
class FmaKernel:
    """The micro-kernel with its operands.

    Attributes
    ----------
    lanes : int
        Columns of a vector.
    dtype : str
        Number type of the sums.
    left, right : Source
        If the outer loop is over the rows, the right one has to be the same for all strips.
    times : callable
        ``(left, right) -> product``.
    dots : callable or None
        ``(accumulators, left, right) -> statement`` that adds a step by an instruction of its own, or None where that
        cannot read the operands; None if a step is a multiplication and an addition.
    prefetch_ahead : callable or None
        Outer strip and part -> function of a tile's rows and columns -> the prefetches of the tile, or None.
    parts : callable or None
        ``(outer strip, over) -> over(part)`` for each part of the depth; None if the depth has one part only.
    """

    scope: Scope
    lanes: int
    dtype: str
    left: Source
    right: Source
    depth: Depth
    epilogue: Epilogue
    times: Callable = operator.mul
    dots: Callable[[Accumulators, Callable, Callable], tirx.Stmt | None] | None = None
    prefetch_ahead: Callable[[Strip, DepthPart | None], Callable[[Strip, Strip], Prefetch | None]] | None = None
    parts: Callable[[Strip, Callable[[DepthPart], tirx.Stmt]], tirx.Stmt] | None = None

    def sweep(self, outer: Strip, each: Callable[[WriteTile], tirx.Stmt]) -> tirx.Stmt:
        """Return the tiles of a panel, which is copied first if its source says so."""
        right = self.right.of(outer)

        def over(part: DepthPart | None) -> tirx.Stmt:
            prefetch = (
                self.prefetch_ahead(outer, part) if self.prefetch_ahead is not None else lambda rows, columns: None
            )
            return each(lambda rows, columns: self.tile(rows, columns, right, part, prefetch(rows, columns)))

        return right.allocated(over(None) if self.parts is None else self.parts(outer, over))

    def tile(
        self,
        rows: Strip,
        columns: Strip,
        right: Reader,
        part: DepthPart | None = None,
        prefetch: Prefetch | None = None,
    ) -> tirx.Stmt:
        """Return one tile, from the start of its sums to their store."""
        acc = Accumulators(self.scope, rows.size, columns.size, self.lanes, self.dtype)
        left = self.left.of(rows)

        def add(step: DepthStep) -> tirx.Stmt:
            return self._add(acc, left.at(rows, step), right.at(columns, step))

        return left.allocated(self._whole(rows, columns, acc, self.depth.steps(add, part, prefetch), part))

    def _add(self, acc: Accumulators, left: Callable, right: Callable) -> tirx.Stmt:
        """Return the statement that adds the products of one step along the depth to the sums of a tile."""
        if self.dots is not None and (added := self.dots(acc, left, right)) is not None:
            return added
        return acc.set(lambda i, j, value: value + self.times(left(i), right(j)))

    def _whole(
        self, rows: Strip, columns: Strip, acc: Accumulators, total: tirx.Stmt, part: DepthPart | None
    ) -> tirx.Stmt:
        epilogue = self.epilogue
        if part is None or part.before is None:
            start = acc.set(lambda i, j, _: epilogue.start)
        else:
            buffer, first = part.before(rows, columns)
            start = acc.set(lambda i, j, _: buffer[first + i, j])
        if part is not None and part.after is not None:
            buffer, first = part.after(rows, columns)
            return acc.allocate(start, total, acc.each(lambda i, j, value: store(buffer, value, first + i, j)))
        start = block(epilogue.prefetched(rows, columns), start)
        if epilogue.stays_in_registers(columns):
            finish = acc.each(lambda i, j, value: epilogue.element(value, rows.first + i, columns.first + j))
            return acc.allocate(start, total, finish)
        # The sums are spilled first: a loop that indexes the accumulators would keep them in memory all the time.
        done = scratch([rows.size, columns.size], self.dtype, "done")
        spill = acc.each(lambda i, j, value: store(done, value, i, j))
        return allocate([done], acc.allocate(start, total, spill, epilogue.block(done, rows, columns)))
