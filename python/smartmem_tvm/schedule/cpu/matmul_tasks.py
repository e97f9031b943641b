# SPDX-License-Identifier: Apache-2.0
"""The choice of a product's register tile and tasks, by the time at which the last thread finishes.

The tile that wastes least on one thread may leave most of many threads idle: 1225 columns are 20 panels of 64, of which
each of 16 threads takes two or none, or 16 panels of 80.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import product
from math import inf

from .gemm.chunks import Chunks
from .params import CpuParams
from .priced_work import Done, Rates, Threads, WorkUnit
from .tile import Tile, column_tiles, good_tiles, is_narrow, step_of, tiles_of

# Times the best tile's cycles on one thread, up to which a tile is a candidate on several threads. Chosen: it bounds
# how many candidates are compared.
_WASTE = 1.2
_AS_GOOD = 1.01  # times the fewest cycles, up to which fewer tasks win. Chosen: less than the model knows
# Times the cycles: the gain on several threads above which another tile, or orientation, is chosen. Chosen: below it
# the model is not sure (2026-11-27).
SURE = 1.1
_ROUNDS = 2  # tasks for each thread. Chosen: with more of them operands are copied more often


@dataclass(frozen=True)
class Tasks:
    """A register tile, and chunks of rows and of columns.

    Attributes
    ----------
    cycles : float
        Until the last thread finishes, for each step along the depth.
    idle : float
        `cycles` as a multiple of those of one thread divided evenly among all; 1 on one thread.
    """

    tile: Tile
    row_parts: int
    column_parts: int
    cycles: float = 0.0
    idle: float = 1.0


@dataclass(frozen=True, eq=False)
class TaskDivision:
    """A product that is to be divided among threads.

    Attributes
    ----------
    batch, rows, columns, depth : int
        Its sizes.
    panel_depth : int
        Steps along the depth of a panel that are multiplied at a time.
    threads : int
        Number of threads.
    near_rows : callable
        Tile -> rows that stay in the second-level cache.
    left : WorkUnit or None
        An element of the left operand that is packed; None if it is not.
    right : callable
        Tile -> an element of the right operand that a task fetches or packs.
    far : callable
        Tile -> an element of the left operand where a task has more rows than `near_rows`.
    steps : callable
        Tile -> steps along the depth that may form a vector where fewer columns remain than a vector has.
    widths : sequence of int
        Columns of tiles, if they are given.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    panel_depth: int
    params: CpuParams
    threads: int
    near_rows: Callable[[Tile], int]
    left: WorkUnit | None
    right: Callable[[Tile], WorkUnit]
    far: Callable[[Tile], WorkUnit]
    steps: Callable[[Tile], int]
    widths: tuple[int, ...] = ()

    @cached_property
    def tiles(self) -> list[Tile]:
        """The candidate tiles, the best one on one thread first."""
        waste = _WASTE if self.threads > 1 else 1.0
        return good_tiles(self.rows, self.columns, self.params, self.panel_depth, self.widths, waste)

    @cached_property
    def facts(self) -> tuple:
        """Everything that the best tasks depend on, as a key: networks repeat products, and several rules ask."""
        sizes = self.batch, self.rows, self.columns, self.depth, self.panel_depth, self.params, self.threads, self.left
        asked = (self.near_rows, self.right, self.far, self.steps)
        return *sizes, *((tile, *(ask(tile) for ask in asked)) for tile in self.tiles)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskDivision) and self.facts == other.facts

    def __hash__(self) -> int:
        return hash(self.facts)

    @lru_cache(maxsize=256)  # noqa: B019 - the cache is small, and products of the same sizes share an entry
    def best(self) -> Tasks:
        """Return the tasks that finish first, or fewer tasks that finish almost as early."""
        found, least = [], inf
        for tile in self.tiles:
            doubt = 1.0 if tile == self.tiles[0] else SURE
            task, last = self._timer(tile)
            alone = self.batch * self._rates.sum_of(task(self.rows, self.columns, True))
            if alone > _AS_GOOD * least * self.threads:
                continue  # too slow even if all threads share the work evenly
            for rows, columns in self._pairs(tile):
                if alone > _AS_GOOD * least * min(self.threads, self.batch * rows * columns):
                    continue  # too slow even if the threads that have a task share the work evenly
                cycles = doubt * last(rows, columns)
                idle = cycles * self.threads / alone if self.threads > 1 else 1.0
                found.append(Tasks(tile, rows, columns, cycles, idle))
                least = min(least, cycles)
        good = (each for each in found if each.cycles <= _AS_GOOD * least)
        return min(good, key=lambda each: (each.row_parts * each.column_parts, each.cycles))

    def shares_left(self, column_parts: int) -> bool:
        """Whether all tasks should read one copy of the left operand, for which threads are woken once more."""
        if self.left is None or self.threads == 1:
            return False
        again = self.depth * self.batch * self.rows * (column_parts - 1) / self.threads
        return self._rates.sum_of([(again, self.left)]) > self._rates.sum_of([Threads(self.threads).woken()])

    def panels(self, tile: Tile, parts: int) -> Chunks:
        """Return the panels of each task; the last task also has the remaining columns, as a panel or beside one."""
        own = self._own_tail(tile)
        chunks = Chunks.of(self.columns // tile.width + own, parts)
        return replace(chunks, last=chunks.last - own)

    def _own_tail(self, tile: Tile) -> bool:
        """Whether there are remaining columns that need a panel of their own, which may also be a task of its own."""
        panels, rest = divmod(self.columns, tile.width)
        if not panels or not rest:
            return False
        last = column_tiles(rest, self.params)[-1]
        return not is_narrow(tile.height, last, self.params, self.depth, self.steps(tile))

    def _pairs(self, tile: Tile) -> list[tuple[int, int]]:
        """Return candidate numbers of chunks of rows and of columns, those with as many tasks as threads first."""
        tiles, panels = max(1, self.rows // tile.height), max(1, self.columns // tile.width + self._own_tail(tile))
        near, wanted = self.rows // self.near_rows(tile) + 2, _ROUNDS * self.threads  # chunks are of whole tiles
        pairs = product(_counts(tiles, max(near, wanted)), _counts(panels, wanted))
        # One axis alone may be cut into more chunks, so that they fit in the cache; both together are few rounds.
        most = [(m, n) for m, n in pairs if self.batch * m * n <= wanted or 1 in (m, n)]
        return sorted(most, key=lambda pair: abs(self.batch * pair[0] * pair[1] - self.threads))

    @cached_property
    def _rates(self) -> Rates:
        """The cycles of units, looked up once for all candidates."""
        return Rates(self.params)

    def _timer(self, tile: Tile) -> tuple[Callable[[int, int, bool, bool], list[Done]], Callable[[int, int], float]]:
        """Return two functions: the work of a task, and the time until the last thread finishes, by chunk numbers.

        Both are of one step along the depth.
        """
        near, right, far, lanes = self.near_rows(tile), self.right(tile), self.far(tile), self.steps(tile)
        threads, rates = Threads(self.threads), self._rates
        columns_of = cache(lambda parts: self.panels(tile, parts).elements(tile.width, self.columns))
        rows_of = cache(lambda parts: Chunks.of(self.rows // tile.height, parts).elements(tile.height, self.rows))
        step = cache(lambda height, width: step_of(height, width, self.params, self.panel_depth, lanes))

        def task(rows: int, columns: int, copies_left: bool, waits: bool = False) -> list[Done]:
            covering = tiles_of(tile, rows, columns, self.params)
            done: list[Done] = [(count, step(high, wide)) for high, wide, count in covering]
            if waits:
                done.append((sum(count for *_, count in covering) * tile.height, far))
            if copies_left and self.left is not None:
                done.append((rows, self.left))
            return [*done, (columns, right)]

        timed = cache(lambda *chunk: rates.sum_of(task(*chunk)))  # many divisions have chunks of the same size

        def last(row_parts: int, column_parts: int) -> float:
            rows, columns = rows_of(row_parts), columns_of(column_parts)
            shared = self.shares_left(columns.count)
            of_rows = []
            for high in (rows.length, rows.last):
                sizes = ((high, wide) for wide in (columns.length, columns.last))
                whole, end = (timed(*size, not shared, high > near) for size in sizes)
                of_rows.append([whole] * (columns.count - 1) + [end])
            tasks = of_rows[0] * (rows.count - 1) + of_rows[1]
            return rates.until_last(threads, tasks, self.batch, self._shared_copy() if shared else ())

        return task, last

    def _shared_copy(self) -> list[Done]:
        """Return the copy of the left operand that all threads make together, for each step along the depth."""
        woken, unit = Threads(self.threads).woken()
        return [(self.batch * self.rows / self.threads, self.left), (woken / self.depth, unit)]


def _counts(units: int, most: int) -> list[int]:
    """Return the numbers of chunks that units may be cut into, one for each length of a chunk."""
    return sorted({-(-units // length) for length in range(1, units + 1) if -(-units // length) <= max(1, most)})
