# SPDX-License-Identifier: Apache-2.0
"""Products of few rows: threads that share the depth of their columns, and the sums of these slices.

    each thread (slice of the depth, some columns) has sums[i, j] of its slice
      sums of the slices of a warp are added by shuffles       CUDA only
      all others are added in shared memory, and finished

A subclass says how a thread multiplies: `coded_rows` reads words of codes, `read_rows` numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ....ir.half import FLOAT
from ...core.expressions import largest_divisor, replace_loads
from ...core.nest import UNROLL, Scope, allocate, block, index, store
from ..guards import guard
from ..launch import registers, shared, when
from ..machine import WARP
from .simt import as_vector
from .skeleton import GpuEpilogue, Place, Thread

_STORED = 4  # sums that a thread stores to shared memory at once: 16 bytes, the widest vector by definition of CUDA
_EVERYONE = 0xFFFFFFFF  # mask of all lanes of a warp, by definition of CUDA


class SlicedRows:
    """The sums of a thread, for all rows and its columns, and their ends; `sums` is set by the subclass.

    Parameters
    ----------
    tile : object
        Has `rows`, `columns`, `slices` and `threads` of a thread block.
    own : int
        Columns of a thread.
    run : int
        Neighbouring results that one store writes: those of a texel, or 1.
    within : int
        Slices of the same columns in a warp, which are added by shuffles.
    fastest : bool
        Whether neighbouring threads have neighbouring slices, not neighbouring columns.
    sides : tuple of buffer
        Where several products of the same left operand make one result: the accumulators of the others.
    """

    sums: object

    def __init__(
        self, scope: Scope, tile, own: int, run: int = 1, within: int = 1, fastest: bool = False, sides: tuple = ()
    ):
        self.scope, self.tile, self.own, self.run = scope, tile, own, run
        self.within, self.fastest, self.sides = within, fastest, sides
        self.every = (1 + len(sides)) * tile.rows * tile.columns  # sums of a thread block
        self.partial = tile.slices // within
        # Threads share the slices of a result where there are more of them than results.
        parts = largest_divisor(self.partial, tile.threads // (self.every // run))
        self.parts = parts if parts < self.partial else 1
        self.of_slices = shared(self.partial * self.every, FLOAT, "of_slices")
        self.of_parts = shared(self.parts * self.every, FLOAT, "of_parts")

    @property
    def merged(self) -> list:
        """Shared memory for the sums of slices."""
        return [self.of_slices, *([self.of_parts] if self.parts > 1 else [])] if self.partial > 1 else []

    def thread(self, number) -> Thread:
        """Return the place of thread `number`."""
        simplify = self.scope.analyzer.simplify
        inner = index(self.tile.slices if self.fastest else self.tile.columns // self.own)
        outer, within = (simplify(op(number, inner)) for op in (tirx.floordiv, tirx.floormod))
        part, column = (within, outer) if self.fastest else (outer, within)
        return Thread(number, part, column, index(0), column)

    def start(self, value) -> tirx.Stmt:
        """Set the sums to zero, the start value."""
        return self._results(lambda n: store(self.sums, value, n))

    def _results(self, body: Callable) -> tirx.Stmt:
        return self.scope.loop((1 + len(self.sides)) * self.tile.rows * self.own, body, "i", UNROLL)

    def finish(self, place: Place, thread: Thread, epilogue: GpuEpilogue) -> tirx.Stmt:
        """Add the sums of slices, and store the results that exist."""
        tile, own = self.tile, index(self.own)
        if self.partial > 1:
            return block(self._shuffled(), self._merged(place, thread, epilogue))

        def each(q):
            n = q * index(self.run)
            i, j = (self.scope.simplify(f(n, own)) for f in (tirx.floordiv, tirx.floormod))

            def values(v) -> list:
                return [self.sums[n + v + index(s * tile.rows * self.own)] for s in range(1 + len(self.sides))]

            return self._store(place, epilogue, i, thread.column * own + j, values)

        stores = self.scope.loop(tile.rows * self.own // self.run, each, "i", UNROLL)
        return block(self._shuffled(), when(thread.slice.equal(index(0)) if self.within > 1 else None, stores))

    def _shuffled(self) -> tirx.Stmt | None:
        """Add the sums of the slices of a warp, in each of its lanes."""
        steps, distance = [], 1 if self.fastest else self.tile.columns // self.own
        for _ in range(self.within.bit_length() - 1):
            steps.append(self._results(lambda n, far=distance: store(self.sums, self.sums[n] + self._other(n, far), n)))
            distance *= 2
        return block(*steps) if steps else None

    def _other(self, n, far: int):
        mask, lanes = tirx.const(_EVERYONE, "uint32"), (tirx.const(each, "int32") for each in (far, WARP))
        return tirx.call_intrin(FLOAT, "tirx.cuda.__shfl_xor_sync", mask, self.sums[n], *lanes)

    def _merged(self, place: Place, thread: Thread, epilogue: GpuEpilogue) -> tirx.Stmt:
        """Return the sums over slices, each by `parts` threads where there are so many, and the stores of results."""
        tile, simplify = self.tile, self.scope.analyzer.simplify
        every, across, run, own = self.every, tile.columns, self.run, self.own
        units, stored = every // run, min(own, _STORED)
        part = simplify(tirx.floordiv(thread.slice, index(self.within)))

        def at(i, column):
            return simplify(part * index(every) + i * index(across) + column)

        def put(i):
            def vector(q):
                first = q * index(stored)

                def one(v):
                    where = at(i, thread.column * index(own) + first + v)
                    return store(self.of_slices, self.sums[i * index(own) + first + v], where)

                return as_vector(self.scope, stored, one)

            return self.scope.loop(own // stored, vector, "q", UNROLL)

        def total(source, first, count: int, stride: int, unit, v):
            place = lambda s: simplify((first + index(s * stride)) * index(every) + unit * index(run) + v)  # noqa: E731
            found = source[place(0)]
            for s in range(1, count):
                found = found + source[place(s)]
            return found

        deposit = self.scope.loop((1 + len(self.sides)) * tile.rows, put, "i", UNROLL)
        if self.within > 1:
            deposit = guard([simplify(tirx.floormod(thread.slice, index(self.within)).equal(index(0)))], deposit)
        parts, threads = self.parts, tile.threads
        source, count = self.of_slices, self.partial
        halfway = None
        if parts > 1:
            mine, unit = (simplify(f(thread.number, index(units))) for f in (tirx.floordiv, tirx.floormod))
            some = as_vector(
                self.scope,
                run,
                lambda v: store(
                    self.of_parts,
                    total(self.of_slices, mine, self.partial // parts, parts, unit, v),
                    simplify(mine * index(every) + unit * index(run) + v),
                ),
            )
            halfway = when(None if parts * units == threads else thread.number < index(parts * units), some)
            source, count = self.of_parts, parts
        results = tile.rows * across // run

        def result(c):
            unit = simplify(c * index(threads) + thread.number)
            first = unit * index(run)
            i, column = (simplify(f(first, index(across))) for f in (tirx.floordiv, tirx.floormod))
            sums = [registers(run, FLOAT, "total") for _ in range(1 + len(self.sides))]
            added = [
                as_vector(
                    self.scope,
                    run,
                    lambda v, s=s, into=into: store(
                        into, total(source, index(0), count, 1, unit + index(s * results) if s else unit, v), v
                    ),
                )
                for s, into in enumerate(sums)
            ]
            stores = self._store(place, epilogue, i, column, lambda v: [each[v] for each in sums])
            inside = allocate(sums, block(*added, stores))
            return inside if results % threads == 0 else when(unit < index(results), inside)

        return block(deposit, halfway, self.scope.loop(-(-results // threads), result, "c", UNROLL))

    def _store(self, place: Place, epilogue: GpuEpilogue, i, column, values: Callable) -> tirx.Stmt:
        """Finish and store `run` results from a column of the thread block on, if they exist."""
        product, run, simplify = epilogue.product, self.run, self.scope.analyzer.simplify
        number = simplify((place.column * index(self.tile.columns) + column) // index(run))
        # If a row has one vector, its first column is the constant 0: the check of texels cannot derive this.
        first = index(0) if product.columns == run else number * index(run)

        def one(v) -> tirx.Stmt:
            *others, last = values(v)
            stored = epilogue.store(last, place, simplify(i), first + v)
            return _with(stored, dict(zip(self.sides, others, strict=True))) if others else stored

        stores = as_vector(self.scope, run, one)
        whole = product.columns % self.tile.columns == 0
        return stores if whole else tirx.IfThenElse(number < index(-(-product.columns // run)), stores, None)


def _with(stored: tirx.BufferStore, known: dict) -> tirx.Stmt:
    """Return a store whose value has known values in place of loads of some buffers."""

    def value(load):
        return next((found for buffer, found in known.items() if load.source.same_as(buffer)), None)

    return tirx.BufferStore(stored.buffer, replace_loads(stored.value, value), list(stored.indices))
