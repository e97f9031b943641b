# SPDX-License-Identifier: Apache-2.0
"""The choice of a register tile by its cycles, with those of remainders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import machine
from .params import CpuParams

_FEW_REGISTERS = 16  # vector registers, by definition of SSE and AVX; AVX-512 and NEON have 32
_PER_STEP = 2  # operations of the loop itself per step, its addition and its branch: fitted with `machine.ISSUE`


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


def cycles(height: int, width: int, params: CpuParams, depth: int = 0) -> float:
    """Return the cycles of one step along the depth: multiplications, loads and the panel, or the latency of a sum.

    Fitted to products of 840 x 256 and 840 x 512 by 960 columns, 23 tiles with AVX-512, 14 with AVX2: docs/cpu.md.

    Parameters
    ----------
    depth : int
        Steps along the depth; they decide in which cache a panel is.
    """
    vectors = -(-width // params.lanes)
    far = depth * width * machine.FLOAT_BYTES > params.far_bytes
    issue = machine.ISSUE if params.registers > _FEW_REGISTERS else machine.ISSUE_FEW_REGISTERS
    beside = issue * (height + vectors + _PER_STEP) + (machine.FAR_STREAM if far else machine.STREAM) * vectors
    busy = max(height * vectors / machine.FMA_PER_CYCLE, (height + vectors) / machine.LOADS_PER_CYCLE)
    return max(busy + beside, machine.FMA_LATENCY)


def fits(height: int, width: int, params: CpuParams) -> bool:
    """Whether accumulators, one row of the right operand and a broadcast fit in the registers.

    With more than 16 registers, some are kept free: tiles that take all 32 were slower than smaller ones. With 16 or
    fewer, LLVM loads all broadcasts of a step before it multiplies a tile's single vector by them, and these need
    registers, too.
    """
    vectors = -(-width // params.lanes)
    if vectors == 1 and params.registers <= _FEW_REGISTERS:
        return 2 * height + 1 <= params.registers
    spare = max(0, params.registers - _FEW_REGISTERS) // 8
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


def narrow_cycles(height: int, width: int, params: CpuParams, depth: int, steps: int) -> float:
    """Return `cycles` for `height` rows in tiles of `narrow_rows`, whose sums are vectors of `steps` steps."""
    multiplying = sum(
        count * max(high * width / machine.FMA_PER_CYCLE, (high + width) / machine.LOADS_PER_CYCLE, machine.FMA_LATENCY)
        for _, count, high in row_tiles(height, narrow_rows(width, params))
    )
    return multiplying / steps + height * width * machine.ADD_LANES / depth


def is_narrow(height: int, width: int, params: CpuParams, depth: int, steps: int) -> bool:
    """Whether sums are vectors of `steps` steps: for fewer columns than a vector has, if that takes less time."""
    if steps == 1 or width >= params.lanes:
        return False
    return narrow_cycles(height, width, params, depth, steps) < cycles(height, width, params, depth)


def total_cycles(tile: Tile, rows: int, columns: int, params: CpuParams, depth: int = 0, steps: int = 1) -> float:
    """Return the cycles of one step along the depth for a `rows` x `columns` result, with its remainders.

    Parameters
    ----------
    steps : int
        Steps along the depth that may form a vector where fewer columns remain than a vector has.
    """
    covering = tiles_of(tile, rows, columns, params)
    return sum(count * cycles_of(high, wide, params, depth, steps) for high, wide, count in covering)


def tiles_of(tile: Tile, rows: int, columns: int, params: CpuParams) -> list[tuple[int, int, int]]:
    """Return (height, width, number) of the tiles that cover a `rows` x `columns` result."""
    widths = [(tile.width, columns // tile.width), *((w, 1) for w in column_tiles(columns % tile.width, params))]
    return [(h, w, nh * nw) for _, nh, h in row_tiles(rows, tile.height) for w, nw in widths if nw]


def cycles_of(height: int, width: int, params: CpuParams, depth: int, steps: int) -> float:
    """Return `cycles`, or `narrow_cycles` where sums are vectors of steps."""
    if is_narrow(height, width, params, depth, steps):
        return narrow_cycles(height, width, params, depth, steps)
    return cycles(height, width, params, depth)


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
    total = {tile: total_cycles(tile, rows, columns, params, depth) for tile in small}
    # At equal cost, fewer and larger tiles read the panels less often.
    best, *others = sorted(small, key=lambda t: (total[t], -t.height * t.width))
    return [best, *(tile for tile in others if total[tile] < waste * total[best])]
