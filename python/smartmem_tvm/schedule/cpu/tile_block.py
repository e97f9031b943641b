# SPDX-License-Identifier: Apache-2.0
"""What products on a tile unit are made of: operands that are rounded into tiles, and a block of 32 x 32 results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from ..core.nest import Scope, block, index
from . import tile_unit
from .tile_unit import DEPTH, SIDE

SPAN = 2 * SIDE  # rows, and columns, of a block of results: two tiles of each operand are multiplied by each other
_ROUNDED_AT_ONCE = 16


def round_line(scope: Scope, line, tiles, row, steps: int) -> tirx.Stmt:
    """``tiles[row // 16, k // 32, row % 16, k % 32] = bfloat16(line[k])``: a row of a left operand."""
    side = index(SIDE)

    def rounded(step) -> tirx.Stmt:
        halves = []
        for half in range(0, DEPTH, _ROUNDED_AT_ONCE):
            bits = _bits(line[_vector(step * index(DEPTH) + half)])
            where = [tirx.floordiv(row, side), step, tirx.floormod(row, side), _vector(index(half))]
            halves.append(tirx.BufferStore(tiles, bits, where))
        return block(*halves)

    return scope.loop(steps, rounded, "step")


def round_lines(scope: Scope, lines, tiles, first, steps: int, width: int) -> tirx.Stmt:
    """``tiles[first + j // 16, k // 32, k % 32 // 2, j % 16] = bfloat16(lines[k, j]), bfloat16(lines[k + 1, j])``.

    Columns of a right operand; `tiles` are of pairs, as uint32.
    """
    return scope.loop(
        steps, lambda step: round_step(scope, lines, step * index(DEPTH), tiles, first, step, width), "step"
    )


def round_step(scope: Scope, lines, at, tiles, first, step, width: int) -> tirx.Stmt:
    """The same for one step along the depth, which is at `at` in `lines`."""

    def one(k, part: int) -> tirx.Stmt:
        row = at + k * index(2)
        both = pair_of(*(lines[row + index(odd), _vector(index(part))] for odd in (0, 1)))
        return tirx.BufferStore(tiles, both, [first + index(part // SIDE), step, k, _vector(index(0))])

    return scope.loop(DEPTH // 2, lambda k: block(*(one(k, part) for part in range(0, width, SIDE))), "pair")


def pair_of(low, high):
    """Pairs of two vectors of 16 numbers, rounded to bfloat16: 32 bits each."""
    low, high = (_bits(each).astype("uint32x16") for each in (low, high))
    return low | (high << tirx.Broadcast(tirx.const(16, "uint32"), SIDE))


@dataclass(frozen=True)
class Sums:
    """Where a block of 32 x 32 sums is.

    Attributes
    ----------
    at : callable
        Tile down and tile across, 0 or 1 -> an address.
    row_bytes : int
        From a row to the next.
    """

    at: Callable
    row_bytes: int

    @classmethod
    def of(cls, buffer, *first, apart: int = SIDE) -> Sums:
        """The block whose last two indices begin at the last two of `first`.

        The second tile across begins `apart` columns after the first, whose last ones are of no use if that is less
        than a tile: they are written over.
        """
        *outer, row, column = first
        return cls(
            lambda a, b: tile_unit.address(buffer, *outer, row + index(a * SIDE), column + index(b * apart)),
            int(buffer.shape[-1]) * 4,
        )


@dataclass(frozen=True)
class Operands:
    """Where the tiles of a block of results are, and how many there are.

    Attributes
    ----------
    left_at, right_at : callable
        Tile within the block, 0 or 1, and step along the depth -> where the tile is.
    height, width : int
        Rows and columns of the block; what lies beyond them in a tile is not used.
    left_streams : bool
        Whether the next blocks are of other tiles of the left operand, and the same ones of the right, which the
        first-level cache is for then.
    """

    left_at: Callable
    right_at: Callable
    height: int
    width: int
    left_streams: bool


def multiply_block(
    scope: Scope, steps: int, operands: Operands, done: Sums, first=0, so_far: Sums | None = None
) -> tirx.Stmt:
    """``done = so_far + left * right`` for a block of results and `steps` along the depth, in whole tiles.

    Parameters
    ----------
    first : int or expression
        The first step.
    so_far : Sums, optional
        What has been added up; nothing by default.
    """
    down, across = (range(-(-length // SIDE)) for length in (operands.height, operands.width))
    totals = {(a, b): 2 * a + b for a in down for b in across}

    def step(t) -> tirx.Stmt:
        left = [tile_unit.load(4 + a, operands.left_at(a, first + t), operands.left_streams) for a in down]
        right = [tile_unit.load(6 + b, operands.right_at(b, first + t), not operands.left_streams) for b in across]
        return block(*left, *right, *(tile_unit.multiply(c, 4 + a, 6 + b) for (a, b), c in totals.items()))

    def start(a: int, b: int, c: int) -> tirx.Stmt:
        if so_far is None:
            return tile_unit.zero(c)
        return tile_unit.load(c, so_far.at(a, b), row_bytes=so_far.row_bytes)

    started = [start(a, b, c) for (a, b), c in totals.items()]
    kept = [tile_unit.keep(c, done.at(a, b), done.row_bytes) for (a, b), c in totals.items()]
    return block(*started, scope.loop(steps, step, "step"), *kept)


def _bits(vector):
    """Of numbers that are rounded, or were."""
    return vector if str(vector.ty.dtype).startswith("uint16") else tile_unit.rounded_bits(vector)


def _vector(first):
    return tirx.Ramp(first, index(1), _ROUNDED_AT_ONCE)
