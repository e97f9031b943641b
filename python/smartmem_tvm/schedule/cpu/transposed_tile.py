# SPDX-License-Identifier: Apache-2.0
"""A square tile that is transposed in registers, where operands and results are contiguous in different directions.

    turned[j, i] = value(i, j)          vectors along i, in which operands are contiguous
    lines[i, j] = turned[j, i]          log2(lanes) exchanges between vectors
    out[.., i, j] = lines[i, j]         vectors along j, in which results are contiguous

An exchange at distance d takes two vectors. It swaps the lanes of the lower one whose number has bit d with the lanes
of the upper one whose number has not (J. O. Eklundh, A fast computer method for matrix transposing).
"""

from __future__ import annotations

from tvm import DataType, tirx

from ..core.nest import SERIAL, Scope, block, index


def turn(turned, lines, side: int, lanes: int, scope: Scope) -> tirx.Stmt:
    """Return ``lines[i, j] = turned[j, i]`` for `side` times `side` numbers, in vectors of `lanes`."""

    def square(number):
        across = index(side // lanes)
        first, start = tirx.floordiv(number, across) * index(lanes), tirx.floormod(number, across) * index(lanes)
        return _square(turned, lines, first, start, lanes)

    return scope.loop((side // lanes) ** 2, square, "square", SERIAL)


def _square(turned, lines, first, start, lanes: int) -> tirx.Stmt:
    """Return the statements for rows ``[first, first + lanes)`` of `lines`, and as many columns from `start` on."""
    made, dtype = [], str(DataType(str(turned.ty.dtype)).with_lanes(lanes))

    def bound(value):
        var = tirx.Var("vector", dtype)
        made.append(tirx.Bind(var, value))
        return var

    def place(row, column):
        return [row, tirx.Ramp(column, index(1), lanes)]

    vectors = [bound(tirx.BufferLoad(turned, place(start + index(n), first))) for n in range(lanes)]
    distance = 1
    while distance < lanes:
        for n in (n for n in range(lanes) if not n & distance):
            low, high = vectors[n], vectors[n + distance]
            # The lanes of `low` have the numbers 0 to lanes - 1; those of `high` follow.
            kept = [each if not each & distance else each - distance + lanes for each in range(lanes)]
            moved = [each + distance if not each & distance else each + lanes for each in range(lanes)]
            vectors[n], vectors[n + distance] = (bound(_shuffled(low, high, which)) for which in (kept, moved))
        distance *= 2
    stores = [tirx.BufferStore(lines, vector, place(first + index(n), start)) for n, vector in enumerate(vectors)]
    return block(*made, *stores)


def _shuffled(low, high, which: list[int]):
    return tirx.Shuffle([low, high], [index(each) for each in which])
