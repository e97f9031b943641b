# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel without tensor cores (SIMT): each thread adds outer products to a register tile.

    for k in the slice's part of a tile of terms:
      left_fragment[i]  = left[k, row(i)]                  vectors of shared memory
      right_fragment[j] = right[k, column(j)]
      sums[i, j] += left_fragment[i] * right_fragment[j]

The vectors of a thread alternate with those of the other threads, so that a warp reads neighbouring vectors. A left
operand whose terms are innermost in shared memory is read several terms at a time. A slice is a group of threads that
takes a part of the terms, for all results of the thread block (CUTLASS: sliced-K).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from tvm import tirx

from ...core.nest import SERIAL, UNROLL, Scope, block, index, store
from ...core.nest import VECTOR as VECTORIZED
from ..launch import shared
from ..sums import Sums
from .skeleton import GpuEpilogue, Place, Thread

# Threads of a warp along the columns, beside 4 along the rows. Chosen: at each step a warp then reads few different
# vectors of shared memory, of both operands.
WARP_COLUMNS = 8


def as_vector(scope: Scope, run: int, body: Callable) -> tirx.Stmt:
    """Return ``body(v)`` for each of `run` neighbours, as one vector."""
    return scope.loop(run, lambda v: scope.simplify(body(v)), "v", VECTORIZED if run > 1 else SERIAL)


def position(number, down: int, across: int, columns: int = WARP_COLUMNS) -> tuple:
    """Return (row, column) of a thread among `down` x `across`, numbered row by row in strips of up to `columns`."""
    inner = gcd(across, columns)
    row = tirx.floormod(tirx.floordiv(number, index(inner)), index(down))
    outer = tirx.floordiv(number, index(inner * down))
    return row, outer * index(inner) + tirx.floormod(number, index(inner))


@dataclass(eq=False)
class Fragment:
    """The elements of one operand that a thread multiplies at a step k: rows, or columns, of its register tile.

    Attributes
    ----------
    operand : object
        A tile in shared memory: its buffer `shared`, and the place ``at(outer, term)`` in it.
    into : buffer
        Registers, one for each row or column of the thread.
    threads : int
        Threads along the rows, or the columns, of the tile of results.
    run : int
        Adjacent rows, or columns, that a thread reads from shared memory as one vector.
    dealt : bool
        Whether neighbouring threads have neighbouring rows (columns) of the product while each reads vectors (`Deal`).
    """

    operand: object
    into: object
    threads: int
    run: int
    dealt: bool = False

    @property
    def count(self) -> int:
        """Rows or columns of the thread."""
        return int(self.into.shape[0])

    def place(self, thread, n):
        """Return the place of a thread's `n`-th row or column in the tile of results."""
        if self.dealt:
            return n * index(self.threads) + thread
        first = (thread + tirx.floordiv(n, index(self.run)) * index(self.threads)) * index(self.run)
        return first + tirx.floormod(n, index(self.run))

    def read(self, scope: Scope, thread, k) -> list[tirx.Stmt]:
        """Load the fragment at term `k`."""

        def one(q: int):
            first = (thread + index(q * self.threads)) * index(self.run)

            def element(v):
                value = self.operand.shared[self.operand.at(first + v, k)]
                return store(self.into, value, index(q * self.run) + v)

            return as_vector(scope, self.run, element)

        return [one(q) for q in range(self.count // self.run)]


@dataclass(eq=False)
class OuterProducts:
    """The multiply-adds of a thread over the terms in shared memory.

    Attributes
    ----------
    rows, columns : int
        Of the register tile.
    terms : int
        Terms of the left operand that are read at a time, and are adjacent in `left`.
    left, right : buffer
        Registers of the operands of a step: `rows` x `terms`, and `columns`.
    """

    scope: Scope
    sums: Sums
    rows: int
    columns: int
    left: object
    right: object
    terms: int = 1

    def over(self, first, depth: int, unroll: int, read_left: Callable, read_right: Callable) -> tirx.Stmt:
        """Return the multiply-adds of terms ``[first, first + depth)``, `unroll` of them unrolled.

        Parameters
        ----------
        read_left, read_right : callable
            Term -> statements that load the registers; the left ones of `terms` terms.
        """
        simplify = self.scope.analyzer.simplify
        # Unrolled terms share these statements; vector loops cannot, as they have variables of their own.
        added = [self._add(u) for u in range(self.terms)] if self.sums.lanes == 1 else None

        def step(k):
            made = read_left(k)
            for u in range(self.terms):
                made = [*made, *read_right(k + index(u)), *(added[u] if added else self._add(u))]
            return made

        def steps(q):
            begin = simplify(first + q * index(unroll))
            return block(*(each for u in range(0, unroll, self.terms) for each in step(begin + index(u))))

        return self.sums.around(self.scope.loop(depth // unroll, steps, "k"))

    def _add(self, term: int) -> list[tirx.Stmt]:
        def left(i: int):
            return self.left[index(i * self.terms + term)]

        rows, columns = range(self.rows), self.columns
        return [each for i in rows for each in self.sums.add(i, columns, left(i), lambda j: self.right[j])]


class Simt:
    """The register tiles of the threads of a thread block; the first slice adds the sums of the others.

    Parameters
    ----------
    tile : BlockTile
    sums : Sums
        Accumulators of a thread, row by row.
    left_fragment, right_fragment : Fragment
        Its rows of the left operand, and its columns of the right one.
    slice_depth, unroll : int
        Terms that a slice takes of a tile of terms, and terms that are unrolled.
    warp_columns : int
        See `position`.
    """

    def __init__(
        self,
        scope: Scope,
        tile,
        sums: Sums,
        left_fragment: Fragment,
        right_fragment: Fragment,
        slice_depth: int,
        unroll: int,
        warp_columns: int = WARP_COLUMNS,
    ):
        self.scope, self.tile = scope, tile
        self.left_fragment, self.right_fragment = left_fragment, right_fragment
        self.slice_depth, self.unroll, self.warp_columns = slice_depth, unroll, warp_columns
        self.held, self.sums = sums, sums.total
        registers = left_fragment.into, right_fragment.into
        self.products = OuterProducts(scope, sums, tile.thread_rows, tile.thread_columns, *registers)
        self.slice_sums = self._slice_sums()

    def _slice_sums(self):
        """Return shared memory for the sums of all slices but the first."""
        sums = (self.tile.slices - 1) * self.tile.rows * self.tile.columns
        return shared(sums or 1, self.sums.ty.dtype, "others")

    @property
    def buffers(self) -> list:
        """Shared memory for sums of slices, accumulators, registers of operands."""
        slice_sums = [self.slice_sums] if self.tile.slices > 1 else []
        return [*slice_sums, *self.held.buffers, self.left_fragment.into, self.right_fragment.into]

    def thread(self, number) -> Thread:
        """Return the place of thread `number`."""
        tile, simplify = self.tile, self.scope.analyzer.simplify
        threads = index(tile.slice_threads)
        part, within = (simplify(op(number, threads)) for op in (tirx.floordiv, tirx.floormod))
        row, column = map(simplify, position(within, tile.threads_down, tile.threads_across, self.warp_columns))
        return Thread(number, part, within, row, column)

    def start(self, value) -> tirx.Stmt:
        """Set the sums to their start value."""
        return self.scope.loop(int(self.sums.shape[0]), lambda i: store(self.sums, value, i), "i", UNROLL)

    def multiply(self, thread: Thread, step) -> tirx.Stmt:
        """Add the products of the terms in shared memory that belong to the thread's slice."""

        def left(k):
            return self.left_fragment.read(self.scope, thread.row, k)

        def right(k):
            return self.right_fragment.read(self.scope, thread.column, k)

        first = thread.slice * index(self.slice_depth)
        products = self.products.over(first, self.slice_depth, self.unroll, left, right)
        return block(products, self.held.count_round(step))

    def finish(self, place: Place, thread: Thread, epilogue: GpuEpilogue) -> tirx.Stmt:
        """Store the results that exist, in the first slice, once it has added the sums of the others."""
        finish = self._rows(place, thread, epilogue)
        return block(self.held.settle(), finish if self.tile.slices == 1 else self._add_slices(thread, finish))

    def _add_slices(self, thread: Thread, finish: tirx.Stmt) -> tirx.Stmt:
        """Return `finish` for the threads of the first slice, after they have added the sums of the others."""
        tile, count = self.tile, int(self.sums.shape[0])

        def other(part, i):  # neighbouring threads access neighbouring elements
            return (part * index(count) + i) * index(tile.slice_threads) + thread.within

        def put(i):
            return store(self.slice_sums, self.sums[i], self.scope.analyzer.simplify(other(thread.slice - index(1), i)))

        def add(i):
            total = self.sums[i]
            for part in range(tile.slices - 1):
                total = total + self.slice_sums[self.scope.analyzer.simplify(other(index(part), i))]
            return store(self.sums, total, i)

        first = thread.slice < index(1)
        return block(
            tirx.IfThenElse(tirx.Not(first), self.scope.loop(count, put, "i", UNROLL), None),
            tirx.IfThenElse(first, block(self.scope.loop(count, add, "i", UNROLL), finish), None),
        )

    def _rows(self, place: Place, thread: Thread, epilogue: GpuEpilogue) -> tirx.Stmt:
        rows, tile = epilogue.product.rows, self.tile

        def each(i):
            at = place.row * index(tile.rows) + self.left_fragment.place(thread.row, i)
            at = self.scope.analyzer.simplify(at)
            stores = self._row(place, i, at, thread.column, epilogue)
            return stores if rows % tile.rows == 0 else tirx.IfThenElse(at < index(rows), stores, None)

        return self.scope.loop(tile.thread_rows, each, "i", UNROLL)

    def _row(self, place: Place, i, row, column, epilogue: GpuEpilogue) -> tirx.Stmt:
        tile, columns = self.tile, epilogue.product.columns
        run = epilogue.run(self.right_fragment.run)
        per_vector = self.right_fragment.run // run

        def one(j):
            q, part = tirx.floordiv(j, index(per_vector)), tirx.floormod(j, index(per_vector))
            at = (column + q * index(tile.threads_across)) * index(per_vector) + part
            at = self.scope.analyzer.simplify(place.column * index(tile.columns // run) + at)
            where = i * index(tile.thread_columns) + j * index(run)
            # If a row has one vector, its first column is the constant 0: the check of texels cannot derive this.
            first = index(0) if columns == run else at * index(run)
            stores = as_vector(self.scope, run, lambda v: epilogue.store(self.sums[where + v], place, row, first + v))
            return stores if columns % tile.columns == 0 else tirx.IfThenElse(at < index(columns // run), stores, None)

        return self.scope.loop(tile.thread_columns // run, one, "j", UNROLL)
