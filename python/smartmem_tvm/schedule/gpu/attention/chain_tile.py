# SPDX-License-Identifier: Apache-2.0
"""Tiles of a chain of rows (attention) on a GPU, as data; the model of time (`cost`) chooses one by its description."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from ....target import Limits
from ...core.plans import Price
from .. import cost, machine
from ..cost import BlockKernel, BlockRates, BlockWork, TileParams, Wait
from ..machine import ADDRESSES, FLOAT_BYTES, VECTOR, WARP
from ..occupancy import register_tile
from ..thread_numbers import Held
from ..waves import spills

# Numbers of a thread for each element whose place it reads from memory: the places of both, its condition, and the
# address. Chosen: with them no chain of biformer_s spilled on a 660 (Mesa 26.2.6, 2026-11-29).
_GATHERED = 6
# Cycles of a chain beside its work, and the share of the smaller of waiting and working that adds to the larger:
# assumed on 2026-11-21.
_RATES = BlockRates(vector=machine.SHARED_VECTOR_CHAIN, overlap=0.45, begin=2000.0)


@dataclass(frozen=True)
class ProductShape:
    """A product of the rows of a block: its number of columns, and of terms of a sum (`depth`).

    `arranged` says that its left operand has to be copied to shared memory first, `gathered` that places of its matrix
    are read from memory.
    """

    columns: int
    depth: int
    arranged: bool
    gathered: bool = False


@dataclass(frozen=True)
class KeptVector:
    """A vector per row: its length, and the numbers of the products that write it by columns or read it by terms."""

    length: int
    written: tuple[int, ...]
    read: tuple[int, ...]


@dataclass(frozen=True)
class ChainShape:
    """The sizes of a chain of rows.

    Attributes
    ----------
    batch, rows : int
        Number of sets of matrices, and of the rows that share one set.
    products : tuple of ProductShape
    kept : tuple of KeptVector
        Vectors per row that stay on chip between products.
    scalars : int
        Number of statistics.
    longest : int
        Most values of a row that an element-wise stage or a statistic goes through.
    """

    batch: int
    rows: int
    products: tuple[ProductShape, ...]
    kept: tuple[KeptVector, ...]
    scalars: int
    longest: int


@dataclass(frozen=True)
class ChainProductTile:
    """How the threads of a thread block share a product.

    Attributes
    ----------
    thread_rows, thread_columns : int
        Register tile: results that a thread keeps in registers.
    slices : int
        Parts of the threads, each of which sums a part of the terms.
    depth : int
        Terms per slice that are in shared memory at a time; a multiple of four.
    """

    thread_rows: int
    thread_columns: int
    slices: int
    depth: int

    @property
    def terms(self) -> int:
        """Terms in shared memory at a time."""
        return self.slices * self.depth

    def shares_evenly(self, rows: int, threads: int) -> bool:
        """Whether the threads of a thread block share its rows evenly."""
        return rows % self.thread_rows == 0 and threads % (self.slices * (rows // self.thread_rows)) == 0


@dataclass(frozen=True)
class ChainTile:
    """The rows and threads of a thread block, and its tile for each product of the chain."""

    rows: int
    threads: int
    products: tuple[ChainProductTile, ...]

    def down(self, number: int) -> int:
        """Return the threads along the rows in product `number`."""
        return self.rows // self.products[number].thread_rows

    def across(self, number: int) -> int:
        """Return the threads along the columns in product `number`."""
        return self.threads // (self.products[number].slices * self.down(number))

    def columns(self, number: int) -> int:
        """Return the columns of the matrix that are in shared memory at a time in product `number`."""
        return self.across(number) * self.products[number].thread_columns

    @property
    def row_threads(self) -> int:
        """Threads that share the work on a row between products."""
        return self.threads // self.rows


@dataclass(frozen=True)
class GpuChainParams(TileParams):
    """Properties of a GPU that the rule for chains of rows uses.

    Attributes
    ----------
    tile_bytes : int
        Most bytes of shared memory for the part of a matrix.
    row_values : int
        Most values of a row that a thread keeps in registers.
    matrix_bytes : int
        Most bytes of the matrices of a batch: every block of rows reads all of them.
    least_rows : int
        Rows of a thread block below which reading the matrices takes longer than multiplying.
    term_latency, round_latency, fetch_latency, value_latency : float
        Latency in cycles that only other thread blocks hide: of a thread per term, per part of a matrix, per value of a
        matrix that the thread copies to shared memory, and per value of a row that it works on.
    value_instructions : int
        Instructions of a thread for each value of a row that it works on.
    apart : float
        Cycles of each of the separate kernels in its place that the estimates of GEMMs leave out.
    rows, threads, thread_tiles, slices, depths
        Candidates.
    """

    rates: BlockRates = _RATES
    tile_bytes: int = 18 * 1024
    row_values: int = 32
    matrix_bytes: int = 384 * 1024
    least_rows: int = 8
    term_latency: float = 18.0
    round_latency: float = machine.ROUND_LATENCY_CHAIN
    fetch_latency: float = 10.0
    value_latency: float = 5.0
    value_instructions: int = 12
    apart: float = 4000.0
    rows: tuple[int, ...] = (8, 16, 32, 64)
    threads: tuple[int, ...] = (64, 128, 256)
    thread_tiles: tuple[tuple[int, int], ...] = ((4, 4), (4, 8), (8, 4), (8, 8))
    slices: tuple[int, ...] = (1, 2, 4, 8)
    depths: tuple[int, ...] = (8, 16, 32)

    @classmethod
    def of(cls, limits: Limits) -> GpuChainParams:
        """Return the parameters with the limits of a target; the rest is a guess if the target names no device."""
        sizes, row = cls(limits.at_most(max(cls.threads), cls.limits.shared_bytes)), limits.device
        if row is None:
            return sizes
        return replace(
            sizes,
            processor=replace(sizes.processor, shared_bytes=row.local_bytes),
            row_values=min(sizes.row_values, row.registers // 2),
        )


def _pitch(length: int, parts: list[int]) -> int:
    """Return the distance in elements between on-chip rows of `length` that are accessed in whole tiles of `parts`.

    Rows begin in different banks of shared memory: a quarter of a warp reads vectors of several rows at once.
    """
    most = max([length, *(-(-length // part) * part for part in parts)])
    return -(-most // WARP) * WARP + 2 * VECTOR


def kept_pitch(vector: KeptVector, tile: ChainTile) -> int:
    """Return the distance in elements between rows of a vector that stays on chip."""
    parts = [tile.columns(n) for n in vector.written] + [tile.products[n].terms for n in vector.read]
    return _pitch(vector.length, parts)


def left_pitch(number: int, shape: ChainShape, tile: ChainTile) -> int:
    """Return the distance in elements between rows of a left operand that is copied to shared memory."""
    return _pitch(shape.products[number].depth, [tile.products[number].terms])


def work_size(number: int, tile: ChainTile) -> int:
    """Return the elements of shared memory for the part of a matrix, reused for the sums of slices after it."""
    own, columns = tile.products[number], tile.columns(number)
    return max(own.terms * (columns + VECTOR), own.slices * tile.rows * columns if own.slices > 1 else 0)


def shared_bytes(shape: ChainShape, tile: ChainTile) -> int:
    """Return the shared memory of a thread block in bytes."""
    total = max(work_size(n, tile) for n in range(len(tile.products)))
    total += sum(tile.rows * kept_pitch(vector, tile) for vector in shape.kept)
    total += sum(tile.rows * left_pitch(n, shape, tile) for n, p in enumerate(shape.products) if p.arranged)
    return FLOAT_BYTES * (total + shape.scalars * (tile.rows + tile.threads))


def _fits(shape: ChainShape, tile: ChainTile, params: GpuChainParams) -> bool:
    shared = shared_bytes(shape, tile)
    return shared <= params.limits.shared_bytes and -(-shape.longest // tile.row_threads) <= params.row_values


def _multiplied(number: int, shape: ChainShape, tile: ChainTile, params: GpuChainParams) -> BlockKernel:
    """Return a product of the chain by one thread block: its terms, the parts of its matrix, and the sums of slices."""
    own, product_ = tile.products[number], shape.products[number]
    columns, warps = tile.columns(number), tile.threads / WARP
    parts, steps = -(-product_.columns // columns), -(-product_.depth // own.terms)
    vectors = own.thread_rows / VECTOR + own.thread_columns / VECTOR
    issued = own.thread_rows * own.thread_columns + vectors + 1  # a warp issues one instruction per cycle at most
    fetched = own.terms * columns
    adding = own.slices * tile.rows * columns / 16 if own.slices > 1 else 0
    turns = parts * steps * own.depth
    term = BlockWork(turns, instructions=warps * issued, vectors=warps * vectors)
    waits = [
        Wait(turns, max(cost.turn_alone(term, params), issued + params.term_latency)),
        Wait(parts * steps * fetched / tile.threads, params.fetch_latency),
        Wait(parts * (steps + 1), params.round_latency),
        Wait(parts, adding),
    ]
    if product_.arranged:
        waits += [Wait(tile.rows * product_.depth / tile.threads, params.fetch_latency), Wait(1, params.round_latency)]
    moved = BlockWork(parts * steps, loaded=FLOAT_BYTES * fetched)
    return BlockKernel(1, tile.threads, work=(term, moved, BlockWork(parts, measured=adding)), waits=tuple(waits))


def described(shape: ChainShape, tile: ChainTile, params: GpuChainParams) -> BlockKernel:
    """Return a chain as the work of a thread block: its products, and what it does with rows between them."""
    products = [_multiplied(n, shape, tile, params) for n in range(len(tile.products))]
    rows = BlockWork(instructions=params.value_instructions * tile.rows * shape.longest / WARP)
    through = Wait(-(-shape.longest // tile.row_threads), params.value_latency)
    results = max(t.thread_rows * t.thread_columns for t in tile.products)
    return BlockKernel(
        shape.batch * -(-shape.rows // tile.rows),
        *(tile.threads, shared_bytes(shape, tile), 80 + 2 * results),
        (*(work for each in products for work in each.work), rows),
        (*(wait for each in products for wait in each.waits), through),
    )


def price(shape: ChainShape, tile: ChainTile, params: GpuChainParams) -> Price:
    """Return the predicted time of a chain, by its terms."""
    return cost.price(described(shape, tile, params), params)


def candidates(
    number: int, shape: ChainShape, rows: int, threads: int, most_bytes: int, params: GpuChainParams
) -> list[ChainProductTile]:
    """Return every tile of a product for a thread block of these rows and threads, `most_bytes` for the matrix part."""
    found, product_ = [], shape.products[number]
    for (down, across), slices, depth in product(params.thread_tiles, params.slices, params.depths):
        own = ChainProductTile(down, across, slices, depth)
        if not own.shares_evenly(rows, threads):
            continue
        tile = ChainTile(rows, threads, (own,) * (number + 1))
        deep = own.terms >= 2 * product_.depth and depth > params.depths[0]
        values = register_tile(down, across, -(-own.terms * tile.columns(number) // threads))
        over = values + ADDRESSES > params.limits.registers or _spills(number, shape, tile, params)
        if FLOAT_BYTES * work_size(number, tile) <= most_bytes and not deep and not over:
            found.append(own)
    return found


def _spills(number: int, shape: ChainShape, tile: ChainTile, params: GpuChainParams) -> bool:
    """Whether a thread of an Adreno spills that reads elements of a matrix at places that it reads, too.

    They are read during the work on the rows before them, whose values are in registers.
    """
    core, own = params.limits.adreno_core, tile.products[number]
    if core is None or not shape.products[number].gathered:
        return False
    fetched = -(-own.terms * tile.columns(number) // tile.threads)
    numbers = Held(own.thread_rows, own.thread_columns, 1, terms=own.depth).gemm + _GATHERED * fetched
    return spills(core, numbers + -(-shape.longest // tile.row_threads), tile.threads)


@cache
def best_chain_tile(shape: ChainShape, params: GpuChainParams) -> ChainTile | None:
    """Return the cheapest tile for a chain, or None if it fits no thread block."""
    best, least = None, float("inf")
    halves = (params.tile_bytes, params.tile_bytes // 2, params.tile_bytes // 4)
    for rows, threads, most_bytes in product(params.rows, params.threads, halves):
        if threads > params.limits.work_group or threads % rows or rows < params.least_rows:
            continue
        tile = _tile(shape, rows, threads, most_bytes, params)
        if tile is not None and (time := cost.cycles(described(shape, tile, params), params)) < least:
            best, least = tile, time
    return best


def _tile(shape: ChainShape, rows: int, threads: int, most_bytes: int, params: GpuChainParams) -> ChainTile | None:
    """Return the best tile of each product by itself; None if these do not fit in a thread block together."""
    chosen: list[ChainProductTile] = []
    by_itself = replace(params, rates=replace(params.rates, overlap=1.0))  # nothing hides what it waits for
    for number in range(len(shape.products)):

        def order(own: ChainProductTile, number: int = number) -> float:
            tile = ChainTile(rows, threads, (own,) * (number + 1))
            return cost.cycles(_multiplied(number, shape, tile, params), by_itself)

        found = min(candidates(number, shape, rows, threads, most_bytes, params), key=order, default=None)
        if found is None:
            return None
        chosen.append(found)
    tile = ChainTile(rows, threads, tuple(chosen))
    return tile if _fits(shape, tile, params) else None
