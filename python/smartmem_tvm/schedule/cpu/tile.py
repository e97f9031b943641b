# SPDX-License-Identifier: Apache-2.0
"""The choice of a register tile by its steps along the depth, with those of remainders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import machine
from .cost import Fma, FmaAlongDepth
from .params import FEW_REGISTERS, CpuParams
from .priced_work import Done, Rates


@dataclass(frozen=True)
class Tile:
    """A block of `height` rows and `width` columns (elements) held in registers."""

    height: int
    width: int


def column_tiles(rest: int, params: CpuParams) -> list[int]:
    """Return the widths that cover the last `rest` columns: whole vectors together, then the remainder."""
    whole = rest // params.lanes * params.lanes
    return [w for w in (whole, rest - whole) if w]


def row_tiles(rows: int, height: int) -> list[tuple[int, int, int]]:
    """Return (first row, number, height) of the tiles that cover some rows.

    If there are enough tiles, the last ones are one row lower, instead of a single one that is much lower. For example,
    13 rows in tiles of 4 would leave a tile of one row, which takes half as long as one of four rows, because it waits
    for the latency of each step along the depth.
    """
    count = -(-rows // height)
    lower = count * height - rows
    if lower < count:
        tiles = [(0, count - lower, height), ((count - lower) * height, lower, height - 1)]
    else:
        whole = rows // height
        tiles = [(0, whole, height), (whole * height, 1, rows - whole * height)]
    return [each for each in tiles if each[1]]


def fits(height: int, width: int, params: CpuParams) -> bool:
    """Whether accumulators, one row of the right operand and a broadcast fit in the registers.

    With more than 16 registers, some are kept free: tiles that take all 32 were slower than smaller ones. With 16 or
    fewer, LLVM loads all broadcasts of a step before it multiplies a tile's single vector by them, and these need
    registers, too.
    """
    vectors = -(-width // params.lanes)
    if vectors == 1 and params.registers <= FEW_REGISTERS:
        return 2 * height + 1 <= params.registers
    spare = max(0, params.registers - FEW_REGISTERS) // 8
    return height * vectors + vectors + 1 + spare <= params.registers


def tile_widths(params: CpuParams) -> list[int]:
    """Return the widths of tiles of which at least one row fits in the registers."""
    widths = (vectors * params.lanes for vectors in params.tile_vectors)
    return [width for width in widths if fits(1, width, params)]


def narrow_rows(width: int, params: CpuParams) -> int:
    """Return the rows of a tile that is narrower than a vector, and whose sums are vectors along the depth."""

    def fit(rows: int) -> bool:
        sums = rows * width
        return sums + min(rows, width) + 1 <= params.registers and sums * params.lanes <= params.tile_values

    return next((rows for rows in range(params.registers, 1, -1) if fit(rows)), 1)


def step_of(height: int, width: int, params: CpuParams, depth: int = 0, lanes: int = 1) -> Fma | FmaAlongDepth:
    """Return the faster step along the depth of `height` x `width` results: of one tile, or of sums along the depth.

    Parameters
    ----------
    depth : int
        Steps along the depth; they decide in which cache a panel is.
    lanes : int
        Steps along the depth that may form a vector where there are fewer columns than a vector has.
    """
    far = depth * width * machine.FLOAT_BYTES > params.far_bytes
    wide = Fma(height, -(-width // params.lanes), far)
    if lanes == 1 or width >= params.lanes:
        return wide
    tiles = tuple((count, high) for _, count, high in row_tiles(height, narrow_rows(width, params)))
    narrow = FmaAlongDepth(tiles, width, lanes, depth)
    return narrow if narrow.cycles(params) < wide.cycles(params) else wide


def is_narrow(height: int, width: int, params: CpuParams, depth: int, lanes: int) -> bool:
    """Whether sums are vectors of `lanes` steps: for fewer columns than a vector has, if that takes less time."""
    return isinstance(step_of(height, width, params, depth, lanes), FmaAlongDepth)


def steps_of(
    tile: Tile, rows: int, columns: int, params: CpuParams, depth: int = 0, lanes: int = 1, times: float = 1
) -> list[Done]:
    """Return `times` steps along the depth for a `rows` x `columns` result, with its remainders."""
    covering = tiles_of(tile, rows, columns, params)
    return [(times * count, step_of(high, wide, params, depth, lanes)) for high, wide, count in covering]


def tiles_of(tile: Tile, rows: int, columns: int, params: CpuParams) -> list[tuple[int, int, int]]:
    """Return (height, width, number) of the tiles that cover a `rows` x `columns` result."""
    widths = [(tile.width, columns // tile.width), *((w, 1) for w in column_tiles(columns % tile.width, params))]
    return [(h, w, nh * nw) for _, nh, h in row_tiles(rows, tile.height) for w, nw in widths if nw]


def best_tile(rows: int, columns: int, params: CpuParams, depth: int = 0, widths: Sequence[int] = ()) -> Tile:
    """Return the tile with the fewest cycles for a `rows` x `columns` result of `depth` steps, by default of any width.

    At equal cost larger tiles win.
    """
    return good_tiles(rows, columns, params, depth, widths)[0]


def good_tiles(
    rows: int, columns: int, params: CpuParams, depth: int = 0, widths: Sequence[int] = (), waste: float = 1.0
) -> list[Tile]:
    """Return `best_tile`, and the tiles that take up to `waste` times its cycles, the best ones first."""
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
    rates = Rates(params)
    total = {tile: rates.sum_of(steps_of(tile, rows, columns, params, depth)) for tile in small}
    # At equal cost, fewer and larger tiles read the panels less often.
    best, *others = sorted(small, key=lambda t: (total[t], -t.height * t.width))
    return [best, *(tile for tile in others if total[tile] < waste * total[best])]
