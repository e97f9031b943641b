# SPDX-License-Identifier: Apache-2.0
"""A windowed product on a grid of threads: tiles of both operands in shared memory, tiles of results in registers.

    group of threads for each tile of rows x columns of a batch:
      acc[thread_rows, thread_columns] = 0                                 registers
      for steps of the sum:
        left_tile[depth, rows], right_tile[depth, columns] = gathered      shared memory
        acc[i, j] += left_tile[k, row(i)] * right_tile[k, column(j)]
      out = finish(acc)

The gather does the padding, the stride and whatever else stands between the input and the product. With slices, as
many such sums over parts of the depth run at once in a group, and are added up through shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tvm import tirx

from ..analysis.kernel import substitute
from .contraction import Contraction
from .expressions import Walk, loads, split_index
from .gpu_launch import launch, registers, shared
from .gpu_window_nest import guard, guarded_value
from .gpu_window_params import ProductTile
from .nest import VECTOR, Scope, allocate, block, index, store

_UNROLLED = 16  # steps of a gather that are written out


@dataclass(eq=False)
class _Side:
    """One operand: what it is, its iterators, their number of values and the tile's."""

    value: object
    vars_: tuple
    total: int
    tile: int
    per_thread: int
    vector: int  # results of a thread that lie next to each other
    buffer: object
    along_depth: bool  # whether neighbours in memory are neighbours in the sum


class ProductNest:
    """The nest of a contraction in a tile."""

    def __init__(self, product: Contraction, tile: ProductTile):
        self.product, self.tile, self.scope = product, tile, Scope()
        r = self.reduction = product.reduction
        self.depth = product.extent(product.depth)
        self.steps = -(-self.depth // (tile.depth * tile.slices))
        self.dtype = r.accumulator.ty.dtype
        self.left = self._side("left_tile", product.left, product.rows, tile.rows, tile.thread_rows)
        self.right = self._side("right_tile", product.right, product.columns, tile.columns, tile.thread_columns)

    def _side(self, name: str, value, vars_: tuple, tile: int, per_thread: int) -> _Side:
        # in one dimension: TVM would take the padding away
        buffer = shared(self.tile.slices * self.tile.depth * (tile + self.tile.pad), self.dtype, name)
        vector = gcd(per_thread, self.tile.vector)
        walk = Walk(self.reduction.extents)
        near = any(walk.load_stride(ld, v) == 1 for ld in loads(value) for v in vars_[-1:])
        deep = any(walk.load_stride(ld, v) == 1 for ld in loads(value) for v in self.product.depth)
        return _Side(value, vars_, self.product.extent(vars_), tile, per_thread, vector, buffer, deep and not near)

    def body(self) -> tirx.Stmt:
        """The whole nest."""
        down, across = -(-self.left.total // self.tile.rows), -(-self.right.total // self.tile.columns)
        batch = self.product.extent(self.product.batch)

        def thread(g, t):
            place = split_index(_div(g, down * across), self.product.batch, self.reduction.extents)
            first_row = _mod(_div(g, across), down) * index(self.tile.rows)
            first_column = _mod(g, across) * index(self.tile.columns)
            return self._thread(place, first_row, first_column, t)

        return launch(self.scope, batch * down * across, self.tile.threads * self.tile.slices, thread)

    def _thread(self, place: dict, first_row, first_column, t) -> tirx.Stmt:
        tile, threads = self.tile, self.tile.threads
        part, lane = _div(t, threads), _mod(t, threads)
        lanes_across = tile.columns // tile.thread_columns
        at_row, at_column = _div(lane, lanes_across), _mod(lane, lanes_across)
        acc = registers(tile.thread_rows * tile.thread_columns, self.dtype, "acc")

        def step(s):
            first = (part * index(self.steps) + s) * index(tile.depth)
            return block(
                self._gather(self.left, place, first_row, first, part, lane),
                self._gather(self.right, place, first_column, first, part, lane),
                self._multiply(acc, part, at_row, at_column),
            )

        start = self._each(lambda i, j: store(acc, self.reduction.init, i * tile.thread_columns + j))
        total = self.scope.loop(self.steps, step, "step")

        def result(value, i, j) -> tirx.Stmt:
            row = first_row + self._position(self.left, at_row, i)
            column = first_column + self._position(self.right, at_column, j)
            return self._store(value, place, row, column)

        if tile.slices == 1:
            end, more = self._each(lambda i, j: result(acc[i * tile.thread_columns + j], i, j)), []
        else:
            end, more = self._merge(acc, part, lane, result)
        buffers = [self.left.buffer, self.right.buffer, acc, *more]
        return allocate(buffers, block(start, total, end))

    def _position(self, side: _Side, lane, n):
        """Place in the tile of result `n` of a thread: short vectors, the same ones of all threads side by side."""
        vector, lanes = side.vector, side.tile // side.per_thread
        if isinstance(n, int):
            return index(n // vector * vector * lanes + n % vector) + lane * index(vector)
        return _div(n, vector) * index(vector * lanes) + lane * index(vector) + _mod(n, vector)

    def _each(self, body) -> tirx.Stmt:
        rows, columns = self.tile.thread_rows, self.tile.thread_columns
        return block(*(self.scope.simplify(body(i, j)) for i in range(rows) for j in range(columns)))

    def _gather(self, side: _Side, place: dict, begin, first, part, lane) -> tirx.Stmt:
        """Fill the tile of one operand, together with the other threads of the slice."""
        depth, threads, total = self.tile.depth, self.tile.threads, self.tile.depth * side.tile
        count, simplify = -(-total // threads), self.scope.analyzer.simplify

        def one(i):
            e = i * index(threads) + lane
            n, k = (_div(e, depth), _mod(e, depth)) if side.along_depth else (_mod(e, side.tile), _div(e, side.tile))
            at, term = begin + n, first + k
            across = split_index(at, side.vars_, self.reduction.extents)
            along = split_index(term, self.product.depth, self.reduction.extents)
            conditions = [simplify(c) for c in (at < index(side.total), term < index(self.depth))]
            element = self.scope.simplify(substitute(side.value, {**place, **across, **along}))
            value = guarded_value(conditions, element, _zero(self.dtype))
            fits = [] if total % threads == 0 else [simplify(e < index(total))]
            slot = self._slot(side, part, k, n)
            return guard(fits, self.scope.simplify(store(side.buffer, value, slot)))

        if count > _UNROLLED:
            return self.scope.loop(count, one, "load")
        return block(*(one(index(i)) for i in range(count)))

    def _slot(self, side: _Side, part, k, n):
        """Where a value lies in a tile."""
        return (part * index(self.tile.depth) + k) * index(side.tile + self.tile.pad) + n

    def _multiply(self, acc, part, at_row, at_column) -> tirx.Stmt:
        rows, columns = self.tile.thread_rows, self.tile.thread_columns
        a = registers(rows, self.dtype, "left")
        b = registers(columns, self.dtype, "right")

        def read(side: _Side, into, lane, k) -> list[tirx.Stmt]:
            def vector(q):
                base = self._position(side, lane, q * side.vector)

                def element(j):
                    value = side.buffer[self.scope.analyzer.simplify(self._slot(side, part, k, base + j))]
                    return store(into, value, index(q * side.vector) + j)

                return self.scope.loop(side.vector, element, "j", VECTOR)

            return [vector(q) for q in range(side.per_thread // side.vector)]

        def term(k):
            fused = [
                store(acc, acc[i * columns + j] + a[i] * b[j], i * columns + j)
                for i in range(rows)
                for j in range(columns)
            ]
            return block(*read(self.left, a, at_row, k), *read(self.right, b, at_column, k), *fused)

        return allocate([a, b], self.scope.loop(self.tile.depth, term, "k"))

    def _merge(self, acc, part, lane, result) -> tuple[tirx.Stmt, list]:
        """Add up what the slices found: each of them finishes some of the results."""
        tile, many = self.tile, self.tile.thread_rows * self.tile.thread_columns
        sums = shared(tile.slices * many * tile.threads, self.dtype, "sums")

        def slot(part, e):
            return (part * index(many) + e) * index(tile.threads) + lane

        spill = block(*(store(sums, acc[e], slot(part, index(e))) for e in range(many)))

        def finish(q):
            e = q * index(tile.slices) + part
            value = sums[slot(index(0), e)]
            for each in range(1, tile.slices):
                value = value + sums[slot(index(each), e)]
            total = registers(1, self.dtype, "total")
            i, j = _div(e, tile.thread_columns), _mod(e, tile.thread_columns)
            return allocate([total], block(store(total, value, 0), self.scope.simplify(result(total[0], i, j))))

        return block(spill, self.scope.loop(many // tile.slices, finish, "q")), [sums]

    def _store(self, value, place: dict, row, column) -> tirx.Stmt:
        extents = self.reduction.extents
        point = {
            **place,
            **split_index(row, self.left.vars_, extents),
            **split_index(column, self.right.vars_, extents),
        }
        conditions = [row < index(self.left.total), column < index(self.right.total)]
        conditions = [self.scope.analyzer.simplify(each) for each in conditions]
        return guard(conditions, self.scope.simplify(self.reduction.store(value, point)))


def _div(value, by: int):
    return tirx.floordiv(value, index(by))


def _mod(value, by: int):
    return tirx.floormod(value, index(by))


def _zero(dtype: str):
    return tirx.const(0, dtype)
