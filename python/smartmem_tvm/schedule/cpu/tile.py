# SPDX-License-Identifier: Apache-2.0
"""Choose a register tile by what it costs, remainders included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .params import CpuParams

_FMA_PER_CYCLE, _FMA_LATENCY, _LOADS_PER_CYCLE = 2, 4, 2
_ISSUE = 0.25  # cycles that a load, or what a loop does, takes from the multiplications beside it
_ISSUE_FEW = 0.08  # the same where there are few registers: with AVX-512 a multiplication may load a factor by itself
_FEW_REGISTERS = 16
_PER_STEP = 2  # such operations of the loop itself
_STREAM = 0.22  # cycles more for a vector from the second-level cache, where the panel of a product is
_FAR_STREAM = 4.0  # the same from behind that cache, where the panel of a very deep product is
_ADD_LANES = 6  # cycles to add up the lanes of a sum
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Tile:
    """A block of `height` rows and `width` columns (elements) held in registers."""

    height: int
    width: int


def column_tiles(rest: int, params: CpuParams) -> list[int]:
    """Widths that cover the last `rest` columns: whole vectors together, then what is left of one."""
    whole = rest // params.lanes * params.lanes
    return [w for w in (whole, rest - whole) if w]


def row_tiles(rows: int, height: int) -> list[tuple[int, int, int]]:
    """(first row, number, height) of the tiles that cover some rows.

    Where there are enough tiles, the last ones are a row lower, instead of one that is much lower: of 13 rows by 4, a
    tile of one row takes half as long as one of four, as it waits for each step along the depth before the next.
    """
    count = -(-rows // height)
    lower = count * height - rows
    if lower < count:
        tiles = [(0, count - lower, height), ((count - lower) * height, lower, height - 1)]
    else:
        whole = rows // height
        tiles = [(0, whole, height), (whole * height, 1, rows - whole * height)]
    return [each for each in tiles if each[1]]


def cycles(height: int, width: int, params: CpuParams, depth: int = 0) -> float:
    """Cycles one step along the depth takes: multiplications, loads, the panel; or waiting for the previous step.

    Fitted to products of 840 x 256 and 840 x 512 by 960 columns, 23 tiles with AVX-512, 14 with AVX2: docs/cpu.md.

    Parameters
    ----------
    depth : int
        Steps; they say in which cache a panel is.
    """
    vectors = -(-width // params.lanes)
    far = depth * width * _FLOAT_BYTES > params.far_bytes
    issue = _ISSUE if params.registers > _FEW_REGISTERS else _ISSUE_FEW
    beside = issue * (height + vectors + _PER_STEP) + (_FAR_STREAM if far else _STREAM) * vectors
    busy = max(height * vectors / _FMA_PER_CYCLE, (height + vectors) / _LOADS_PER_CYCLE)
    return max(busy + beside, _FMA_LATENCY)


def fits(height: int, width: int, params: CpuParams) -> bool:
    """Whether accumulators, one row of the right operand and a broadcast fit in the registers.

    Where there are more than 16 of them, some are left over: tiles that take all 32 were slower than smaller ones.
    Where there are no more, LLVM loads all broadcasts of a step before it multiplies one vector by them.
    """
    vectors = -(-width // params.lanes)
    if vectors == 1 and params.registers <= _FEW_REGISTERS:
        return 2 * height + 1 <= params.registers
    spare = max(0, params.registers - _FEW_REGISTERS) // 8
    return height * vectors + vectors + 1 + spare <= params.registers


def tile_widths(params: CpuParams) -> list[int]:
    """Widths of tiles of which at least one row fits in the registers."""
    widths = (vectors * params.lanes for vectors in params.tile_vectors)
    return [width for width in widths if fits(1, width, params)]


def narrow_rows(width: int, params: CpuParams) -> int:
    """Rows of a tile of less than a vector's columns, where each of its sums is a vector of steps along the depth."""

    def fit(rows: int) -> bool:
        sums = rows * width
        return sums + min(rows, width) + 1 <= params.registers and sums * params.lanes <= params.tile_values

    return next((rows for rows in range(params.registers, 1, -1) if fit(rows)), 1)


def narrow_cycles(height: int, width: int, params: CpuParams, depth: int, steps: int) -> float:
    """As `cycles`, of `height` rows in tiles of `narrow_rows`, whose sums are vectors of `steps` steps."""
    multiplying = sum(
        count * max(high * width / _FMA_PER_CYCLE, (high + width) / _LOADS_PER_CYCLE, _FMA_LATENCY)
        for _, count, high in row_tiles(height, narrow_rows(width, params))
    )
    return multiplying / steps + height * width * _ADD_LANES / depth


def is_narrow(height: int, width: int, params: CpuParams, depth: int, steps: int) -> bool:
    """Whether sums are to be vectors of `steps` steps: of fewer columns than a vector has, where it takes less time."""
    if steps == 1 or width >= params.lanes:
        return False
    return narrow_cycles(height, width, params, depth, steps) < cycles(height, width, params, depth)


def total_cycles(tile: Tile, rows: int, columns: int, params: CpuParams, depth: int = 0, steps: int = 1) -> float:
    """Cycles that one step along the depth takes for a `rows` x `columns` result, remainders included.

    Parameters
    ----------
    steps : int
        Along the depth that may be a vector where the columns that are left are none.
    """
    covering = tiles_of(tile, rows, columns, params)
    return sum(count * cycles_of(high, wide, params, depth, steps) for high, wide, count in covering)


def tiles_of(tile: Tile, rows: int, columns: int, params: CpuParams) -> list[tuple[int, int, int]]:
    """(height, width, number) of the tiles that cover a `rows` x `columns` result."""
    widths = [(tile.width, columns // tile.width), *((w, 1) for w in column_tiles(columns % tile.width, params))]
    return [(h, w, nh * nw) for _, nh, h in row_tiles(rows, tile.height) for w, nw in widths if nw]


def cycles_of(height: int, width: int, params: CpuParams, depth: int, steps: int) -> float:
    """`cycles`, or `narrow_cycles` where sums are vectors of steps."""
    if is_narrow(height, width, params, depth, steps):
        return narrow_cycles(height, width, params, depth, steps)
    return cycles(height, width, params, depth)


def best_tile(rows: int, columns: int, params: CpuParams, depth: int = 0, widths: Sequence[int] = ()) -> Tile:
    """The tile with the fewest cycles for a `rows` x `columns` result of `depth` steps, by default of any width."""
    return good_tiles(rows, columns, params, depth, widths)[0]


def good_tiles(
    rows: int, columns: int, params: CpuParams, depth: int = 0, widths: Sequence[int] = (), waste: float = 1.0
) -> list[Tile]:
    """`best_tile`, and those that take up to `waste` times its cycles, the best ones first."""
    tiles = [
        Tile(height, width)
        for height in params.tile_rows
        for width in widths or tile_widths(params)
        if fits(height, width, params)
    ]
    small = [t for t in tiles if t.height <= rows and t.width <= columns]
    if not small:
        width = min(columns, params.lanes)
        small = [Tile(h, width) for h in range(1, min(rows, params.tile_rows[-1]) + 1) if fits(h, width, params)][-1:]
    total = {tile: total_cycles(tile, rows, columns, params, depth) for tile in small}
    # equal cost: fewer, larger tiles reread the panels less often
    best, *others = sorted(small, key=lambda t: (total[t], -t.height * t.width))
    return [best, *(tile for tile in others if total[tile] < waste * total[best])]
