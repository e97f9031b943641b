# SPDX-License-Identifier: Apache-2.0
"""Few rows times a matrix of numbers: threads copy it through shared memory, many vectors ahead.

    start the copies of the first turns                        asynchronous, to places of each thread in shared memory
    rows = left[...]                                           shared memory, once for all threads
    each thread (slice of the depth, some columns), for each of its turns:
      words = those of this turn                               no other thread reads them, so that there is no barrier
      start the copies of a later turn
      sums[i, j] += rows[i, k] * words[k, j]
    sums of slices are added (`sliced_rows`), and finished

Vectors of 16 bytes lie along the columns, or along the depth where those of a column are neighbours in memory. A
product of one row takes as long as its matrix takes from memory, if enough bytes are on their way: the bandwidth times
the latency (`ring`). A load of the left operand in each turn would wait behind those copies: turns took 1,100 cycles
on an H200 (2026-11-29), however many numbers they had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import NamedTuple

from tvm import DataType, tirx

from ....ir.half import FLOAT
from ...core.nest import UNROLL, Scope, block, index, store
from ..guards import guard
from ..launch import registers, shared
from . import ptx
from .operand import Operand
from .ring import Ring, in_turns
from .row_statistic import RowStatistic
from .simt import as_vector
from .skeleton import Place, Staging, Thread
from .sliced_rows import SlicedRows

_VECTOR_BYTES = 16  # bytes of one access, by definition of CUDA


class Turn(NamedTuple):
    """The numbers of the depth that a thread multiplies together.

    Attributes
    ----------
    place : Place
    units : tuple of expression
        Numbers of its units of the depth: vectors along the depth, or single numbers.
    """

    place: Place
    units: tuple


class ReadWords(Staging):
    """The vectors of a thread: a ring in shared memory, and those of a turn in registers.

    Parameters
    ----------
    left : Operand
        The left operand.
    rights : sequence of Operand
        The right operands, plain loads: several if several products of one left operand make one result.
    casts : sequence of str
        The types that their numbers become, one after the other, before they are multiplied.
    tile : FewTile
    most : int
        Numbers of the left operand that a thread loads at once, at most.
    """

    def __init__(self, scope: Scope, left: Operand, rights: Sequence[Operand], casts: Sequence[str], tile, most: int):
        self.scope, self.left, self.rights, self.casts, self.tile = scope, left, rights, casts, tile
        dtype = str(rights[0].value(index(0), index(0), index(0)).ty.dtype)
        self.words = registers(tile.loads * tile.vector, dtype, "words")
        self.turns, self.rest = divmod(rights[0].depth // tile.unit, tile.slices * tile.steps)
        self.ahead = min(tile.stages - 1, self.turns)
        self.ring = Ring(scope, "ring", dtype, tile.vector, tile.loads, tile.threads, tile.stages)
        dtype = str(left.value(index(0), index(0), index(0)).ty.dtype)
        self.width = left.run(True, most)
        self.rows = shared(tile.rows * left.depth, dtype, "rows") if tile.staged else None
        self.early = False  # whether the first copies start before the kernels before are done
        self.statistic: RowStatistic | None = None  # sums over rows that the left operand reads
        held = [self.rows] if tile.staged else []
        super().__init__(1, [*([self.ring.buffer] if self.turns else []), *held, self.words])

    def with_statistic(self, statistic: RowStatistic) -> None:
        """Let thread blocks add up the rows before they store them in shared memory."""
        self.statistic = statistic
        self.buffers = [*self.buffers, *statistic.buffers]

    def declare(self) -> tirx.Stmt | None:
        """Keep the size of the ring."""
        return ptx.whole(self.ring.buffer) if self.turns else None

    def round(self, place: Place, thread: Thread, step, multiply: Callable) -> tirx.Stmt:
        """Copy and multiply, turn by turn; `multiply` takes a `Turn`."""
        tile, scope, simplify, width = self.tile, self.scope, self.scope.analyzer.simplify, self.tile.vector

        def units(turn, many: int) -> tuple:
            """Return the units of a thread in a turn of `many` units of each thread."""
            within = [index(u * tile.slices) + thread.slice for u in range(many)]
            if not tile.along:
                within = [thread.slice * index(many) + index(u) for u in range(many)]
            return tuple(simplify(turn * index(tile.slices * many) + at) for at in within)

        def start(turn) -> tirx.Stmt:
            each = self._vectors(place, thread, units(turn, tile.steps))
            return block(*(self.ring.copy(thread.number, turn, to, value(index(0))) for to, value in each))

        def read(turn) -> tirx.Stmt:
            each = range(tile.loads)
            return block(*(self.ring.read(thread.number, turn, to, self.words, to * width) for to in each))

        def use(turn) -> tirx.Stmt:
            return multiply(Turn(place, units(turn, tile.steps)))

        def single(turn) -> tirx.Stmt:
            """Return a turn of one unit of each thread, from memory."""
            own = tuple(simplify(index(self.turns * tile.slices * tile.steps) + at) for at in units(turn, 1))
            loads = [
                as_vector(
                    scope, width, lambda v, to=to, value=value: store(self.words, value(v), index(to * width) + v)
                )
                for to, value in self._vectors(place, thread, own)
            ]
            there = [] if self.rest % tile.slices == 0 else [own[0] < index(self.rights[0].depth // tile.unit)]
            return guard(there, block(*loads, multiply(Turn(place, own))))

        rows = self._stage(place, thread) if tile.staged else None
        if self.statistic is not None:
            rows = block(self.statistic.add_up(thread.number), rows)
        if self.early and self.turns:
            rows = block(*ptx.depend(), rows)
        whole = in_turns(scope, self.turns, self.ahead, start, read, use, rows) if self.turns else rows
        return block(whole, scope.loop(-(-self.rest // tile.slices), single, "last") if self.rest else None)

    def _stage(self, place: Place, thread: Thread) -> tirx.Stmt:
        """Store the left operand in shared memory, in which all threads read it."""
        width, simplify, depth = self.width, self.scope.analyzer.simplify, index(self.left.depth)
        vectors, threads = self.tile.rows * self.left.depth // width, self.tile.threads

        def value(i, k):
            found = self.left.value(place.batch, i, k)
            return found if self.statistic is None else self.statistic.known(found)

        def each(c):
            number = simplify(c * index(threads) + thread.number)
            first = number * index(width)
            i, k = (simplify(f(first, depth)) for f in (tirx.floordiv, tirx.floormod))
            vector = as_vector(self.scope, width, lambda v: store(self.rows, value(i, k + v), first + v))
            return guard([] if vectors % threads == 0 else [number < index(vectors)], vector)

        return self.scope.loop(-(-vectors // threads), each, "c", UNROLL)

    def term(self, place: Place, i: int, k):
        """Return the number of the left operand in row `i` at depth `k`."""
        if self.rows is not None:
            return self.rows[index(i * self.left.depth) + k]
        return self.left.value(place.batch, index(i), k)

    def _load(self, first: int, value: Callable) -> tirx.Stmt:
        return as_vector(
            self.scope, self.tile.vector, lambda v: store(self.words, self.scope.simplify(value(v)), index(first) + v)
        )

    def at(self, side: int, u, j, k):
        """Return the place among the words of step `u`: of column `j`, and of number `k` of a unit.

        Parameters
        ----------
        side : int
            Number of the product.
        """
        tile = self.tile
        return ((u + index(side * tile.steps)) * index(tile.own) + j) * index(tile.unit) + k

    def number(self, side: int, u, j, k):
        """Return the number at a place, as `at` has it, in float32."""
        found = self.words[self.scope.index(self.at(side, u, j, k))]
        for dtype in self.casts:
            found = found.astype(dtype)
        return found.astype(FLOAT)

    def _vectors(self, place: Place, thread: Thread, units: tuple) -> list[tuple]:
        """Return (number of a vector among the words, its value as a function of its elements) of some units."""
        tile, simplify, found = self.tile, self.scope.analyzer.simplify, []
        first = simplify(place.column * index(tile.columns // tile.own) + thread.column)
        for side, right in enumerate(self.rights):
            for u, at in enumerate(units):
                if not tile.along:
                    number = first if right.outer % tile.columns == 0 else _most(first, right.outer // tile.own - 1)

                    def value(v, right=right, n=number, at=at):
                        return right.value(place.batch, n * index(tile.own) + v, at)

                    found.append((side * tile.steps + u, value))
                    continue
                for j in range(tile.own):
                    column = simplify(first * index(tile.own) + index(j))
                    column = column if right.outer % tile.columns == 0 else _most(column, right.outer - 1)

                    def value(v, right=right, c=column, at=at):
                        return right.value(place.batch, c, at * index(tile.unit) + v)

                    found.append(((side * tile.steps + u) * tile.own + j, value))
        return found


def _most(number, last: int):
    return tirx.min(number, index(last))


class ReadRows(SlicedRows):
    """The micro-kernel: all rows and some columns of a thread, added up in float32.

    Parameters
    ----------
    source : ReadWords
        The right operands.
    sides : tuple of buffer
        The accumulators of all products but the last.
    """

    def __init__(self, scope: Scope, source: ReadWords, sides: tuple):
        tile = source.tile
        super().__init__(scope, tile, tile.own, within=tile.within, fastest=tile.along, sides=sides)
        self.source, left = source, source.left
        dtype = str(left.value(index(0), index(0), index(0)).ty.dtype)
        together = tile.unit if tile.along else tile.steps  # numbers of the depth that are neighbours
        # In shared memory rows lie one after the other.
        self.vector = min(gcd(together, left.depth), _VECTOR_BYTES // DataType(dtype).itemsize)
        self.vector = self.vector if source.rows is not None else min(together, source.width)
        self.terms = registers(tile.steps * tile.unit, dtype, "terms")
        self.sums = registers((1 + len(sides)) * tile.rows * tile.own, FLOAT, "sums")

    @property
    def buffers(self) -> list:
        """Registers, and shared memory for the sums of slices."""
        return [*self.merged, self.sums, self.terms]

    def multiply(self, thread: Thread, step: Turn) -> tirx.Stmt:
        """Add the products of a turn, whose words are in registers."""
        return block(*(self._row(i, step) for i in range(self.tile.rows)))

    def _row(self, i: int, turn: Turn) -> tirx.Stmt:
        tile, numbers = self.tile, len(turn.units) * self.tile.unit

        def add(side: int, k):
            u, v = (self.scope.index(f(k, index(tile.unit))) for f in (tirx.floordiv, tirx.floormod))
            row = (side * tile.rows + i) * tile.own

            def column(j):
                sums = self.sums[index(row) + j]
                term = self.terms[k].astype(FLOAT)
                return store(self.sums, sums + term * self.source.number(side, u, j, v), index(row) + j)

            return self.scope.loop(tile.own, column, "j", UNROLL)

        adds = [
            self.scope.loop(numbers, lambda k, side=side: add(side, k), "k", UNROLL)
            for side in range(1 + len(self.sides))
        ]
        return block(*self._terms(i, turn), *adds)

    def _terms(self, i: int, turn: Turn) -> list[tirx.Stmt]:
        """Load the numbers of a row of the left operand."""
        unit, simplify = self.tile.unit, self.scope.analyzer.simplify
        if self.tile.along:
            runs = [(at * index(unit), unit) for at in turn.units]
        else:
            runs = [(turn.units[0], len(turn.units))]
        made, to = [], 0
        for first, many in runs:
            width = self.vector if many % self.vector == 0 else 1
            for q in range(many // width):
                made.append(self._some(i, turn, simplify(first + index(q * width)), to, width))
                to += width
        return made

    def _some(self, i: int, turn: Turn, at, to: int, many: int) -> tirx.Stmt:
        def one(v):
            return store(self.terms, self.source.term(turn.place, i, at + v), index(to) + v)

        return as_vector(self.scope, many, one)
