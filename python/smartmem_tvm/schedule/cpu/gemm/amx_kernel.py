# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of AMX: blocks of 32 x 32 sums in tile registers, of bfloat16 tiles of both operands.

    C00, C01, C10, C11 = 0                                                tile registers
    for k in steps of 32: C00 += A0 * B0; C01 += A0 * B1; ...
    done = C;  result = finish(done[i, j])                                float32, while in the cache

It wants the left operand as ``[row // 16, k // 32, row % 16, k % 32]``, and the right one in pairs along the depth, as
``[column // 16, k // 32, k % 32 // 2, column % 16, k % 2]``; `LeftTiles` and `RightTiles` copy operands into these
forms. A ragged edge is computed in whole tiles, whose surplus results are not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from ...core.nest import Scope, block, index, scratch, store
from . import amx
from .amx import DEPTH, SIDE
from .amx_block import SPAN, Operands, SumAddresses, multiply_block, tiles_of_line, tiles_of_lines, tiles_of_step
from .axis import Strip
from .epilogue import Epilogue
from .gemm import DepthPart, WriteTile


@dataclass(frozen=True, eq=False)
class AmxKernel:
    """The micro-kernel with its operands.

    Attributes
    ----------
    steps : int
        Tiles along the depth.
    left_at, right_at : callable
        ``(row or column, number, step)`` -> the address of the tile that begins `number` tiles after it.
    done : buffer
        Scratch memory for the sums of a tile.
    left_streams : bool
        Whether the inner loop is over the rows, so that the first-level cache is left to the right operand.
    apart : int
        Columns of the result from one tile of the right operand to the next.
    parts : callable or None
        ``over -> over(part)`` for each part of the depth, in tiles; None if the depth has one part only.
    """

    scope: Scope
    steps: int
    left_at: Callable
    right_at: Callable
    done: tirx.Buffer
    epilogue: Epilogue
    left_streams: bool = True
    apart: int = SIDE
    parts: Callable[[Callable[[DepthPart], tirx.Stmt]], tirx.Stmt] | None = None

    def sweep(self, _: Strip, each: Callable[[WriteTile], tirx.Stmt]) -> tirx.Stmt:
        """Return the blocks of a line, in each part of the depth in turn.

        The part of the operand that stays the same remains in the first-level cache; sums are kept between parts.
        """

        def over(part: DepthPart) -> tirx.Stmt:
            return each(lambda rows, columns: self.tile(rows, columns, part))

        return over(DepthPart(index(0), self.steps)) if self.parts is None else self.parts(over)

    def tile(self, rows: Strip, columns: Strip, part: DepthPart) -> tirx.Stmt:
        """Return blocks of results beside each other, and their epilogue if the part ends the depth."""
        span, width = 2 * self.apart, columns.size
        rest = width % span
        whole = self.scope.loop(
            width // span, lambda t: self._block(rows, columns, t * index(span), span, part), "block"
        )
        products = block(
            whole if width >= span else None,
            self._block(rows, columns, index(width - rest), rest, part) if rest else None,
        )
        return products if part.after else block(products, self.epilogue.block(self.done, rows, columns))

    def _block(self, rows: Strip, columns: Strip, beside, across: int, part: DepthPart) -> tirx.Stmt:
        """Return ``done = so far + left * right`` for a block that begins `beside` columns after the first one."""
        column = columns.first + beside

        def left_at(number: int, step):
            return self.left_at(rows.first, number, step)

        def right_at(number: int, step):
            return self.right_at(column, number, step)

        tiles = -(-across // self.apart)
        operands = Operands(left_at, right_at, rows.size, tiles * SIDE, self.left_streams)
        before, after = (place and place(rows.first, column) for place in (part.before, part.after))
        done = after or SumAddresses.of(self.done, index(0), beside, apart=self.apart)
        return multiply_block(self.scope, part.length, operands, done, part.first, before)


def _padding(scope: Scope, depth: int, put: Callable) -> tirx.Stmt | None:
    """Return ``put(step)`` for the steps that pad the depth to whole tiles: zeros, which add nothing."""
    rest = -depth % DEPTH
    return scope.loop(rest, lambda k: put(index(depth) + k), "k") if rest else None


class LeftTiles:
    """Scratch memory for rows of a left operand in bfloat16 tiles; each row is copied into `line` first."""

    def __init__(self, scope: Scope, rows: int, depth: int, dtype: str):
        self.scope, self.depth, self.steps = scope, depth, -(-depth // DEPTH)
        self.line = scratch([self.steps * DEPTH], dtype, "line")
        self.tiles = scratch([-(-rows // SIDE), self.steps, SIDE, DEPTH], "uint16", "left")

    def padding(self) -> tirx.Stmt | None:
        """Return the zeros behind the end of a line, if there are any."""
        return _padding(self.scope, self.depth, lambda k: store(self.line, tirx.const(0, self.line.dtype), k))

    def row(self, copy: tirx.Stmt, row) -> tirx.Stmt:
        """Return the copy of a row into the tiles, after the statement that copies it into the line."""
        return block(copy, tiles_of_line(self.scope, self.line, self.tiles, row, self.steps))


class RightTiles:
    """Scratch memory for columns of a right operand in tiles of bfloat16 pairs.

    Parameters
    ----------
    lanes : int
        Columns of a vector of zeros.
    span : int
        Columns that are copied into `lines` together.
    one_step : bool
        Whether `lines` holds one step of 32 along the depth, which are copied one after the other.
    """

    def __init__(
        self,
        scope: Scope,
        columns: int,
        depth: int,
        dtype: str,
        lanes: int,
        span: int = SPAN,
        one_step: bool = False,
    ):
        self.scope, self.depth, self.lanes, self.steps = scope, depth, lanes, -(-depth // DEPTH)
        self.lines = scratch([DEPTH * (1 if one_step else self.steps), span], dtype, "lines")
        self.tiles = scratch([-(-columns // SIDE), self.steps, DEPTH // 2, SIDE], "uint32", "right")

    def padding(self) -> tirx.Stmt | None:
        """Return the zeros behind the last line, if there are any."""
        zero = tirx.const(0, self.lines.dtype)

        def line(k) -> tirx.Stmt:
            return self.scope.vectors(SPAN, self.lanes, lambda j: store(self.lines, zero, k, j))

        return _padding(self.scope, self.depth, line)

    def start(self) -> tuple:
        """Return the statements before any copy."""
        return amx.whole(self.tiles), self.padding()

    def columns(self, copy: tirx.Stmt, first, width: int) -> tirx.Stmt:
        """Return the copy of columns into tile `first` and those after it, after that of the columns into `lines`."""
        return block(copy, tiles_of_lines(self.scope, self.lines, self.tiles, first, self.steps, width))

    def each_step(self, copy: Callable[[object], tirx.Stmt], first, width: int) -> tirx.Stmt:
        """Return the same one step of 32 after the other: ``copy(step)`` fills `lines`."""

        def step(t) -> tirx.Stmt:
            return block(copy(t), tiles_of_step(self.scope, self.lines, index(0), self.tiles, first, t, width))

        return self.scope.loop(self.steps, step, "step")
