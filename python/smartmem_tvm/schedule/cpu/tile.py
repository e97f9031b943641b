# SPDX-License-Identifier: Apache-2.0
"""Choose a register tile by what it costs, remainders included."""

from __future__ import annotations

from dataclasses import dataclass

from .params import CpuParams

_FMA_PER_CYCLE, _LOADS_PER_CYCLE, _FMA_LATENCY = 2, 2, 4
_STREAM = 1.5  # cycles for a vector from the second-level cache, where the panel of a deep product is


@dataclass(frozen=True)
class Tile:
    """A block of `height` rows and `width` columns (elements) held in registers."""

    height: int
    width: int


def column_tiles(rest: int, params: CpuParams) -> list[int]:
    """Widths that cover the last `rest` columns: whole vectors together, then what is left of one."""
    whole = rest // params.lanes * params.lanes
    return [w for w in (whole, rest - whole) if w]


def cycles(height: int, width: int, params: CpuParams) -> float:
    """Cycles one step along the depth takes: multiplications, loads, the panel, or waiting for the previous step."""
    vectors = -(-width // params.lanes)
    loads = (height + vectors) / _LOADS_PER_CYCLE
    return max(height * vectors / _FMA_PER_CYCLE, loads, vectors * _STREAM, _FMA_LATENCY)


def fits(height: int, width: int, params: CpuParams) -> bool:
    """Whether accumulators, one row of the right operand and a broadcast fit in the registers."""
    vectors = -(-width // params.lanes)
    return height * vectors + vectors + 1 <= params.registers and height * width <= params.tile_values


def total_cycles(tile: Tile, rows: int, columns: int, params: CpuParams) -> float:
    """Cycles that one step along the depth takes for a `rows` x `columns` result, remainders included."""
    heights = [(tile.height, rows // tile.height), (rows % tile.height, 1)]
    widths = [(tile.width, columns // tile.width)]
    widths += [(w, 1) for w in column_tiles(columns % tile.width, params)]
    return sum(cycles(h, w, params) * nh * nw for h, nh in heights for w, nw in widths if h and w and nh and nw)


def best_tile(rows: int, columns: int, params: CpuParams) -> Tile:
    """The tile with the fewest cycles for a `rows` x `columns` result."""
    tiles = [
        Tile(height, vectors * params.lanes)
        for height in params.tile_rows
        for vectors in params.tile_vectors
        if fits(height, vectors * params.lanes, params)
    ]
    small = [t for t in tiles if t.height <= rows and t.width <= columns]
    if not small:
        small = [Tile(min(rows, params.tile_rows[-1]), min(columns, params.lanes))]
    # equal cost: fewer, larger tiles reread the panels less often
    return min(small, key=lambda t: (total_cycles(t, rows, columns, params), -t.height * t.width))
