# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of multiply-adds: a register tile of sums, to which each step adds a column times a row.

    acc[height, width] = start                       registers
    for each step k: acc[i, j] += left[i, k] * right[k, j]
    result = finish(acc[i, j])

An element of the left operand is broadcast, and a row of the right one is read in vectors. So the left operand may lie
anywhere, and the right one has to be contiguous along the columns: in place, or in panels of the tile's width. Pairs of
integers take the same loops with another instruction (`Accumulators.add_pairs`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tvm import tirx

from ...core.nest import SERIAL, Scope, allocate, block, index, scratch, store
from ..prefetch import Ask, in_pieces
from .accumulators import Accumulators
from .axis import Piece
from .gemm import Part, Tile


@dataclass(frozen=True, eq=False)
class Step:
    """A step along the depth: its number, or the values of the iterators that make it up, or both."""

    number: tirx.PrimExpr | None
    point: Mapping = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Operand:
    """An operand for one tile, or for all tiles of a panel.

    Attributes
    ----------
    at : callable
        ``(piece, step) -> function of the position in the piece -> element``.
    buffers : sequence of buffer
        Scratch memory that it lies in.
    made : Stmt or None
        The statement that fills that memory.
    """

    at: Callable[[Piece, Step], Callable]
    buffers: Sequence = ()
    made: tirx.Stmt | None = None

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Return a statement with the operand made before it."""
        return allocate(self.buffers, block(self.made, body))

    def of(self, _: Piece) -> Operand:
        """Return the operand itself, as a source that is the same for all pieces."""
        return self


def in_place(read: Callable) -> Operand:
    """Return a left operand that is read at ``read(row, step's number)``."""
    return Operand(lambda rows, step: lambda i: read(rows.first + i, step.number))


class Source(Protocol):
    """Where an operand comes from."""

    def of(self, piece: Piece) -> Operand:
        """Return the operand for a piece of rows (left), or of columns (right)."""


class Depth(Protocol):
    """The loops along the depth of a tile."""

    def steps(self, add: Callable[[Step], tirx.Stmt], part: Part | None, ask: Ask | None) -> tirx.Stmt:
        """Return ``add(step)`` for each step of a part, or of all; `ask` makes prefetches in front of some."""


@dataclass(frozen=True, eq=False)
class FusedDepth:
    """One loop over all steps, of which `unroll` at a time are unrolled."""

    scope: Scope
    depth: int
    unroll: int

    def steps(self, add: Callable[[Step], tirx.Stmt], part: Part | None, ask: Ask | None) -> tirx.Stmt:
        """Return the loop."""
        first, length = (index(0), self.depth) if part is None else (part.first, part.length)
        return in_pieces(self.scope, length, self.unroll, lambda k: add(Step(self.scope.simplify(first + k))), ask)


@dataclass(frozen=True, eq=False)
class NestedDepth:
    """A loop for each iterator of the depth, of the kind that `kind` says; without parts and prefetches."""

    scope: Scope
    vars_: Sequence
    extents: Mapping
    kind: Callable = lambda var: SERIAL

    def steps(self, add: Callable[[Step], tirx.Stmt], _part: Part | None, _ask: Ask | None) -> tirx.Stmt:
        """Return the loops."""
        return self.scope.nest(self.vars_, self.extents, lambda point: add(Step(None, point)), "k", self.kind)


class Epilogue(Protocol):
    """The start values of sums, and the use of the finished ones."""

    start: tirx.PrimExpr

    def asked(self, rows: Piece, columns: Piece) -> tirx.Stmt | None:
        """Return prefetches of the places that results go to, or None."""

    def stays_in_registers(self, columns: Piece) -> bool:
        """Whether results are stored from the registers; else from a copy of the sums in scratch memory."""

    def element(self, value, row, column) -> tirx.Stmt:
        """Return the store of one result, given its sum."""

    def block(self, sums, rows: Piece, columns: Piece) -> tirx.Stmt:
        """Return the stores of all results of a tile, given scratch memory with its sums."""


@dataclass(frozen=True, eq=False)
class Stored:
    """The epilogue that only stores sums, from the registers: ``put(value, row, column)``."""

    put: Callable[..., tirx.Stmt]
    start: tirx.PrimExpr

    def asked(self, _rows: Piece, _columns: Piece) -> None:
        """Return None: no prefetch."""

    def stays_in_registers(self, _columns: Piece) -> bool:
        """Whether sums are stored from the registers: yes."""
        return True

    def element(self, value, row, column) -> tirx.Stmt:
        """Return the store of a sum."""
        return self.put(value, row, column)


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
    times : callable
        ``(left, right) -> product``.
    dots : callable or None
        ``(accumulators, left, right) -> statement`` that adds a step by an instruction of its own, or None where that
        cannot read the operands; None if a step is a multiplication and an addition.
    ahead : callable or None
        Held piece and part -> function of a tile's rows and columns -> the prefetches of the tile, or None.
    parts : callable or None
        ``(held piece, over) -> over(part)`` for each part of the depth; None if the depth has one part only.
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
    ahead: Callable[[Piece, Part | None], Callable[[Piece, Piece], Ask | None]] | None = None
    parts: Callable[[Piece, Callable[[Part], tirx.Stmt]], tirx.Stmt] | None = None

    def line(self, held: Piece, each: Callable[[Tile], tirx.Stmt]) -> tirx.Stmt:
        """Return the tiles of a panel, which is copied first if its source says so."""
        right = self.right.of(held)

        def over(part: Part | None) -> tirx.Stmt:
            ask = self.ahead(held, part) if self.ahead is not None else lambda rows, columns: None
            return each(lambda rows, columns: self.tile(rows, columns, right, part, ask(rows, columns)))

        return right.around(over(None) if self.parts is None else self.parts(held, over))

    def tile(
        self, rows: Piece, columns: Piece, right: Operand, part: Part | None = None, ask: Ask | None = None
    ) -> tirx.Stmt:
        """Return one tile, from the start of its sums to their store."""
        acc = Accumulators(self.scope, rows.size, columns.size, self.lanes, self.dtype)
        left = self.left.of(rows)

        def add(step: Step) -> tirx.Stmt:
            return self._add(acc, left.at(rows, step), right.at(columns, step))

        return left.around(self._whole(rows, columns, acc, self.depth.steps(add, part, ask), part))

    def _add(self, acc: Accumulators, left: Callable, right: Callable) -> tirx.Stmt:
        """Return the statement that adds the products of one step along the depth to the sums of a tile."""
        if self.dots is not None and (added := self.dots(acc, left, right)) is not None:
            return added
        return acc.set(lambda i, j, value: value + self.times(left(i), right(j)))

    def _whole(self, rows: Piece, columns: Piece, acc: Accumulators, total: tirx.Stmt, part: Part | None) -> tirx.Stmt:
        epilogue = self.epilogue
        if part is None or part.before is None:
            start = acc.set(lambda i, j, _: epilogue.start)
        else:
            buffer, first = part.before(rows, columns)
            start = acc.set(lambda i, j, _: buffer[first + i, j])
        if part is not None and part.after is not None:
            buffer, first = part.after(rows, columns)
            return acc.allocate(start, total, acc.each(lambda i, j, value: store(buffer, value, first + i, j)))
        start = block(epilogue.asked(rows, columns), start)
        if epilogue.stays_in_registers(columns):
            finish = acc.each(lambda i, j, value: epilogue.element(value, rows.first + i, columns.first + j))
            return acc.allocate(start, total, finish)
        # The sums are spilled first: a loop that indexes the accumulators would keep them in memory all the time.
        done = scratch([rows.size, columns.size], self.dtype, "done")
        spill = acc.each(lambda i, j, value: store(done, value, i, j))
        return allocate([done], acc.allocate(start, total, spill, epilogue.block(done, rows, columns)))
