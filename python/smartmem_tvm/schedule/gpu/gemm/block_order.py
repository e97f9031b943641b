# SPDX-License-Identifier: Apache-2.0
"""The order in which thread blocks take the tiles of a product (block swizzling), and its memory traffic.

A band is a strip of column tiles. Bands come one after the other, and each is walked row by row:

    band 0 | band 1         columns: a band's part of the right operand can stay in the cache
    0 1 2  | 12 13          rows: the left operand is read once for each band
    3 4 5  | 14 15
    6 7 8  | 16 17          a band as wide as the product: the right operand is read again for every few rows
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from itertools import islice

from tvm import tirx

from ...core.nest import index

_LOOKED_AT = 2048  # thread blocks that are simulated; chosen: further ones have the traffic of the second half


def place_of(number, rows: int, columns: int, band: int) -> tuple:
    """Return expressions (row tile, column tile) of thread block `number`, counted modulo ``rows * columns``.

    Parameters
    ----------
    rows, columns : int
        Tiles in each direction.
    band : int
        Column tiles of a band, from 1 to `columns`; the last band may be narrower.
    """
    if band == columns:
        return tirx.floormod(tirx.floordiv(number, index(columns)), index(rows)), tirx.floormod(number, index(columns))
    number = tirx.floormod(number, index(rows * columns))
    whole, last = divmod(columns, band)
    first = index(whole * rows * band)  # first thread block of the narrower band
    within = tirx.floormod(number, index(rows * band))
    row = tirx.floordiv(within, index(band))
    column = tirx.floordiv(number, index(rows * band)) * index(band) + tirx.floormod(within, index(band))
    if not last:
        return row, column
    # Never negative, so that floordiv is lowered to a plain division.
    rest = tirx.max(number - first, index(0))
    return (
        tirx.Select(number < first, row, tirx.floordiv(rest, index(last))),
        tirx.Select(number < first, column, tirx.floormod(rest, index(last)) + index(whole * band)),
    )


def walk(rows: int, columns: int, band: int) -> Iterator[tuple[int, int]]:
    """Yield the same as numbers: the (row tile, column tile) of each thread block in turn."""
    for first in range(0, columns, band):
        for row in range(rows):
            for column in range(first, min(first + band, columns)):
                yield row, column


def bands(columns: int) -> list[int]:
    """Return the widths of bands narrower than the product that are worth a try."""
    return [width for k in range(columns.bit_length()) for width in (2**k, 3 * 2**k) if width < columns]


@cache
def traffic(rows: int, columns: int, band: int, sizes: tuple[int, int, int], at_once: int, cached: int) -> float:
    """Return the bytes that are read from memory and written to it while the tiles of one product are walked.

    Thread blocks that run at once walk the terms of their sums in step: a tile that several of them read is loaded
    once. It is still in the cache in the next round unless more bytes than the cache holds were touched since.

    Parameters
    ----------
    sizes : (int, int, int)
        Bytes of a row tile of the left operand, a column tile of the right one, and a tile of results.
    at_once : int
        Thread blocks that run at the same time.
    cached : int
        Bytes of the last-level cache.
    """
    held: OrderedDict = OrderedDict()
    moved, used, before = 0, 0, [0]
    order = list(islice(walk(rows, columns, band), _LOOKED_AT))
    for first in range(0, len(order), at_once):
        touched = _touched(order[first : first + at_once], first, sizes)
        new = sum(size for tile, size in touched.items() if tile not in held)
        moved, used = moved + new, used + new
        for tile, size in touched.items():
            held[tile] = size
            held.move_to_end(tile)
        while used > cached:
            used -= held.popitem(last=False)[1]
        before.append(moved)
    middle = (len(before) - 1) // 2
    steady = (moved - before[middle]) / (len(before) - 1 - middle)
    return moved + steady * (rows * columns - len(order)) / at_once


def _touched(places: list[tuple[int, int]], first: int, sizes: tuple[int, int, int]) -> dict:
    left = {("left", row): sizes[0] for row, _ in places}
    right = {("right", column): sizes[1] for _, column in places}
    return left | right | {("results", first): sizes[2] * len(places)}
