# SPDX-License-Identifier: Apache-2.0
"""The parts of products on AMX: operands that are rounded to bfloat16 tiles, and a block of 32 x 32 results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from ...core.nest import Scope, block, index
from . import amx
from .amx import DEPTH, SIDE

SPAN = 2 * SIDE  # rows, and columns, of a block of results: two tiles of the left operand times two of the right one
_ROUNDED_AT_ONCE = 16  # numbers that one instruction rounds, by definition of AVX512_BF16


def tiles_of_line(scope: Scope, line, tiles, row, steps: int) -> tirx.Stmt:
    """Return ``tiles[row // 16, k // 32, row % 16, k % 32] = bfloat16(line[k])`` for a row of a left operand."""
    side = index(SIDE)

    def rounded(step) -> tirx.Stmt:
        halves = []
        for half in range(0, DEPTH, _ROUNDED_AT_ONCE):
            bits = _bits(line[_vector(step * index(DEPTH) + half)])
            where = [tirx.floordiv(row, side), step, tirx.floormod(row, side), _vector(index(half))]
            halves.append(tirx.BufferStore(tiles, bits, where))
        return block(*halves)

    return scope.loop(steps, rounded, "step")


def tiles_of_lines(scope: Scope, lines, tiles, first, steps: int, width: int) -> tirx.Stmt:
    """Return the copy of columns of a right operand into tiles of bfloat16 pairs, as uint32.

    ``tiles[first + j // 16, k // 32, k % 32 // 2, j % 16] = bfloat16(lines[k, j]), bfloat16(lines[k + 1, j])``
    """
    return scope.loop(
        steps, lambda step: tiles_of_step(scope, lines, step * index(DEPTH), tiles, first, step, width), "step"
    )


def tiles_of_step(scope: Scope, lines, at, tiles, first, step, width: int) -> tirx.Stmt:
    """Return the same for one step along the depth, which begins at line `at` of `lines`."""

    def one(k, part: int) -> tirx.Stmt:
        row = at + k * index(2)
        both = pair_of(*(lines[row + index(odd), _vector(index(part))] for odd in (0, 1)))
        return tirx.BufferStore(tiles, both, [first + index(part // SIDE), step, k, _vector(index(0))])

    return scope.loop(DEPTH // 2, lambda k: block(*(one(k, part) for part in range(0, width, SIDE))), "pair")


def pair_of(low, high):
    """Return two vectors of 16 numbers, rounded to bfloat16, as a vector of 16 pairs of 32 bits."""
    low, high = (_bits(each).astype("uint32x16") for each in (low, high))
    return low | (high << tirx.Broadcast(tirx.const(16, "uint32"), SIDE))


@dataclass(frozen=True)
class SumAddresses:
    """The addresses of a block of 32 x 32 sums.

    Attributes
    ----------
    at : callable
        Tile down and tile across, 0 or 1 -> an address.
    row_bytes : int
        Bytes from a row to the next.
    """

    at: Callable
    row_bytes: int

    @classmethod
    def of(cls, buffer, *first, apart: int = SIDE) -> SumAddresses:
        """Return the block whose last two indices begin at the last two of `first`.

        The second tile across begins `apart` columns after the first one. If `apart` is less than a tile, it overwrites
        the last columns of the first tile, which are surplus.
        """
        *outer, row, column = first
        return cls(
            lambda a, b: amx.address(buffer, *outer, row + index(a * SIDE), column + index(b * apart)),
            int(buffer.shape[-1]) * 4,
        )


@dataclass(frozen=True)
class Operands:
    """The addresses of the operands' tiles for a block of results, and the size of the block.

    Attributes
    ----------
    left_at, right_at : callable
        Tile within the block, 0 or 1, and step along the depth -> the tile's address.
    height, width : int
        Rows and columns of the block; the surplus of a tile is not used.
    left_streams : bool
        Whether the next blocks read other tiles of the left operand and the same ones of the right operand, so that
        the first-level cache is left to the right one.
    row_bytes : tuple of int
        Bytes from a row of a tile to the next in memory, of the left operand and of the right one.
    multiply : callable
        Registers of sums, of the left and of the right tile -> the instruction.
    """

    left_at: Callable
    right_at: Callable
    height: int
    width: int
    left_streams: bool
    row_bytes: tuple[int, int] = (amx.ROW_BYTES, amx.ROW_BYTES)
    multiply: Callable = amx.multiply


def multiply_block(
    scope: Scope, steps: int, operands: Operands, done: SumAddresses, first=0, so_far: SumAddresses | None = None
) -> tirx.Stmt:
    """Return ``done = so_far + left * right`` for a block of results and `steps` along the depth, in whole tiles.

    Parameters
    ----------
    first : int or expression
        The first step.
    so_far : Sums, optional
        The sums of earlier steps; zero by default.
    """
    down, across = (range(-(-length // SIDE)) for length in (operands.height, operands.width))
    totals = {(a, b): 2 * a + b for a in down for b in across}

    def step(t) -> tirx.Stmt:
        streams, (of_left, of_right) = operands.left_streams, operands.row_bytes
        left = [amx.load(amx.LEFT[a], operands.left_at(a, first + t), streams, of_left) for a in down]
        right = [amx.load(amx.RIGHT[b], operands.right_at(b, first + t), not streams, of_right) for b in across]
        products = (operands.multiply(c, amx.LEFT[a], amx.RIGHT[b]) for (a, b), c in totals.items())
        return block(*left, *right, *products)

    def start(a: int, b: int, c: int) -> tirx.Stmt:
        if so_far is None:
            return amx.zero(c)
        return amx.load(c, so_far.at(a, b), row_bytes=so_far.row_bytes)

    started = [start(a, b, c) for (a, b), c in totals.items()]
    kept = [amx.keep(c, done.at(a, b), done.row_bytes) for (a, b), c in totals.items()]
    return block(*started, scope.loop(steps, step, "step"), *kept)


def _bits(vector):
    """Return the bits of a vector as bfloat16; a vector of uint16 holds these bits already."""
    return vector if str(vector.ty.dtype).startswith("uint16") else amx.bfloat16_bits(vector)


def _vector(first):
    return tirx.Ramp(first, index(1), _ROUNDED_AT_ONCE)
