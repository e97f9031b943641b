# SPDX-License-Identifier: Apache-2.0
"""The accumulators of a register tile, in several scratch buffers that are small enough for the stack."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ....ir.packings import Packing
from ....ir.pairs import widened
from ...core.nest import UNROLL, Scope, allocate, block, index, scratch, store
from ..packed_vectors import adder, dot_pieces, lies_in_row, vector_of
from ..params import CpuParams

# Bytes. By definition of TVM (`kMaxStackAlloca`): it allocates a buffer of so many or more on the heap, once per tile.
_MOST_BYTES = 1024


class Accumulators:
    """`height` x `width` accumulators in registers.

    The rows are divided among buffers of less than `_MOST_BYTES`, and the loops over each are unrolled. LLVM keeps
    these buffers in registers, and together they hold more than one buffer could.

    Parameters
    ----------
    lanes : int
        Columns of one vector.
    """

    def __init__(self, scope: Scope, height: int, width: int, lanes: int, dtype: str):
        self.scope, self.width, self.lanes = scope, width, lanes
        most = max(1, (_MOST_BYTES - 1) // (width * tirx.decl_buffer([1], dtype).dtype.itemsize))
        count = -(-height // most)
        high = [height // count + (part < height % count) for part in range(count)]
        self.parts = [(sum(high[:n]), rows, scratch([rows * width], dtype, "acc")) for n, rows in enumerate(high)]

    def allocate(self, *statements) -> tirx.Stmt:
        """Return statements with the allocation of the accumulators around them."""
        return allocate([buffer for _, _, buffer in self.parts], block(*statements))

    def each(self, body: Callable) -> tirx.Stmt:
        """Return the unrolled statements ``body(row, column, value)`` for all accumulators."""
        return block(*(self._part(first, rows, acc, body) for first, rows, acc in self.parts))

    def _part(self, first: int, rows: int, acc, body: Callable) -> tirx.Stmt:
        def line(i):
            return self.scope.vectors(
                self.width, self.lanes, lambda j: body(index(first) + i, j, acc[i * self.width + j])
            )

        return self.scope.loop(rows, line, "i", UNROLL)

    def add_dots(self, left: Callable, right: Callable, packing: Packing, params: CpuParams) -> tirx.Stmt | None:
        """Return ``sum += packing.dot(left(row), right(column))`` for all sums, by the processor's instruction for it.

        The result is None if vectors do not cover the columns, or these are not contiguous, or the processor has no
        such instruction.
        """
        pieces = dot_pieces(self.width, self.lanes)
        if pieces is None or adder(packing, self.lanes, params) is None:
            return None
        if not lies_in_row(self.scope, right, self.width):
            return None

        def part(first: int, rows: int, acc) -> tirx.Stmt:
            def one(i, column: int, lanes: int) -> tirx.Stmt:
                place = tirx.Ramp(self.scope.index(i * self.width + index(column)), index(1), lanes)
                across = tirx.Broadcast(widened(self.scope.simplify(left(index(first) + i))), lanes)
                along = vector_of(self.scope.simplify(right(index(column))), lanes)
                added = adder(packing, lanes, params)(tirx.BufferLoad(acc, [place]), across, along)
                return tirx.BufferStore(acc, added, [place])

            return self.scope.loop(rows, lambda i: block(*(one(i, *piece) for piece in pieces)), "i", UNROLL)

        return block(*(part(*each) for each in self.parts))

    def add_dots_along(self, left: Callable, right: Callable, packing: Packing, params: CpuParams) -> tirx.Stmt | None:
        """Return ``sum += packing.dot(left(row, step), right(row, step))`` where a row's sums are a vector of steps.

        The result is None where `add_dots` has none, for the steps in place of the columns.
        """
        add = adder(packing, self.width, params)
        if add is None:
            return None

        def part(first: int, rows: int, acc) -> tirx.Stmt | None:
            lines = []
            for i in range(rows):
                sides = [lambda j, side=side, i=i: side(index(first + i), j) for side in (left, right)]
                if not all(lies_in_row(self.scope, side, self.width) for side in sides):
                    return None
                place = tirx.Ramp(index(i * self.width), index(1), self.width)
                vectors = (vector_of(self.scope.simplify(side(index(0))), self.width) for side in sides)
                lines.append(tirx.BufferStore(acc, add(tirx.BufferLoad(acc, [place]), *vectors), [place]))
            return block(*lines)

        parts = [part(*each) for each in self.parts]
        return None if None in parts else block(*parts)

    def set(self, value: Callable) -> tirx.Stmt:
        """Return ``sum = value(row, column, sum)`` for all accumulators."""
        return self.each(lambda i, j, old: store(old.source, value(i, j, old), *old.indices))
