# SPDX-License-Identifier: Apache-2.0
"""A convolution as an implicit GEMM: tiles of both operands in shared memory, register tiles of results.

    thread block for each tile of rows x columns of a batch:
      acc[thread_rows, thread_columns] = 0                                 registers
      for steps of the sum:
        left_tile[depth, rows], right_tile[depth, columns] = gathered      shared memory
        acc[i, j] += left_tile[k, row(i)] * right_tile[k, column(j)]
      out = finish(acc)

The gather applies padding, stride and any other index map between the input and the product (im2col on the fly). Slices
of a thread block compute sums over parts of the depth at the same time, and add them up through shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tvm import tirx

from ....ir.kernel import substitute
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ...core.contraction import Contraction
from ...core.expressions import Walk, split_index
from ...core.nest import VECTOR, Scope, allocate, block, index, on_chip, store
from ..guards import guard, guarded_value
from ..launch import launch, registers, shared
from ..sums import Sums, product_type
from .texels import runs_along_texels
from .window_tiles import ProductTile

_UNROLLED = 16  # most steps of a gather that are unrolled


@dataclass(eq=False)
class _Side:
    """One operand: its expression, its iterators, their total extent and that of the tile."""

    value: object
    vars_: tuple
    total: int
    tile: int
    per_thread: int
    vector: int  # contiguous results of a thread
    buffer: object
    along_depth: bool  # whether terms of the sum are innermost in memory
    texel: tuple[int, int]  # (values, terms) of a texel that one load gathers


class ProductNest:
    """The loop nest of a contraction in a tile.

    Parameters
    ----------
    texels : bool
        Four neighbouring columns are a texel of the result, which one store writes.
    lanes : int
        Widest vector of float16 arithmetic, in elements.
    """

    def __init__(self, product: Contraction, tile: ProductTile, texels: bool = False, lanes: int = 1):
        self.product, self.tile, self.scope, self.lanes = product, tile, Scope(), lanes
        self.run = TEXEL if texels else 1
        r = self.reduction = product.reduction
        self.depth = product.extent(product.depth)
        self.steps = -(-self.depth // (tile.depth * tile.slices))
        self.dtype, self.total = product_type(product), str(r.accumulator.ty.dtype)
        self.left = self._side("left_tile", product.left, product.rows, tile.rows, tile.thread_rows)
        self.right = self._side("right_tile", product.right, product.columns, tile.columns, tile.thread_columns)

    def _side(self, name: str, value, vars_: tuple, tile: int, per_thread: int) -> _Side:
        # One dimension: TVM would remove the padding of a second one.
        buffer = shared(self.tile.slices * self.tile.depth * (tile + self.tile.pad), self.dtype, name)
        vector = gcd(per_thread, max(self.tile.vector, self.run))
        walk = Walk(self.reduction.extents)
        near = any(walk.load_stride(ld, v) == 1 for ld in loads(value) for v in vars_[-1:])
        deep = any(walk.load_stride(ld, v) == 1 for ld in loads(value) for v in self.product.depth)
        total, texel = self.product.extent(vars_), self._texel(value, vars_)
        return _Side(value, vars_, total, tile, per_thread, vector, buffer, deep and not near, texel)

    def _texel(self, value, vars_: tuple) -> tuple[int, int]:
        extents = self.reduction.extents
        if runs_along_texels(value, vars_[-1], extents):
            return TEXEL, 1
        deep = runs_along_texels(value, self.product.depth[-1], extents) and self.tile.depth % TEXEL == 0
        return (1, TEXEL) if deep else (1, 1)

    def body(self) -> tirx.Stmt:
        """Return the whole loop nest."""
        down, across = -(-self.left.total // self.tile.rows), -(-self.right.total // self.tile.columns)
        batch = self.product.extent(self.product.batch)

        def thread(g, t):
            place = split_index(_div(g, down * across), self.product.batch, self.reduction.extents)
            first_row = _mod(_div(g, across), down) * index(self.tile.rows)
            first_column = _mod(g, across) * index(self.tile.columns)
            return self._thread(place, first_row, first_column, t)

        return launch(self.scope, batch * down * across, self.tile.threads, thread)

    def _thread(self, place: dict, first_row, first_column, t) -> tirx.Stmt:
        tile, threads = self.tile, self.tile.slice_threads
        part, lane = _div(t, threads), _mod(t, threads)
        lanes_across = tile.columns // tile.thread_columns
        at_row, at_column = _div(lane, lanes_across), _mod(lane, lanes_across)
        together = gcd(TEXEL, tile.thread_columns)
        sums = Sums(
            self.scope, tile.thread_rows * tile.thread_columns, self.dtype, self.total, "acc", together, self.lanes
        )
        acc = sums.total

        def step(s):
            first = (part * index(self.steps) + s) * index(tile.depth)
            return block(
                self._gather(self.left, place, first_row, first, part, lane),
                self._gather(self.right, place, first_column, first, part, lane),
                on_chip(lambda: sums.around(self._multiply(sums, part, at_row, at_column))),
            )

        results = tile.thread_rows * tile.thread_columns
        start = block(*(store(acc, self.reduction.init, n) for n in range(results)))
        total = self.scope.loop(self.steps, step, "step")

        def finish(values, first, n) -> tirx.Stmt:
            """Finish and store `run` results, from the `n`-th one of the thread on; `values` holds them."""
            i, j = (self.scope.simplify(f(n, tile.thread_columns)) for f in (_div, _mod))
            row = first_row + self._position(self.left, at_row, i)
            column = first_column + self._position(self.right, at_column, j)
            return self._store(values, first, place, row, column)

        if tile.slices == 1:
            end, more = block(*(finish(acc, n, index(n)) for n in range(0, results, self.run))), []
        else:
            end, more = self._merge(acc, part, lane, finish)
        buffers = [self.left.buffer, self.right.buffer, *sums.buffers, *more]
        return allocate(buffers, block(start, total, end))

    def _position(self, side: _Side, lane, n):
        """Return the place in the tile of result `n` of a thread: short vectors, interleaved among the threads."""
        vector, lanes = side.vector, side.tile // side.per_thread
        if isinstance(n, int):
            return index(n // vector * vector * lanes + n % vector) + lane * index(vector)
        return _div(n, vector) * index(vector * lanes) + lane * index(vector) + _mod(n, vector)

    def _gather(self, side: _Side, place: dict, begin, first, part, lane) -> tirx.Stmt:
        """Fill this thread's share of the tile of one operand; the threads of a slice fill it together."""
        values, terms = side.texel
        depth, tile, threads = self.tile.depth // terms, side.tile // values, self.tile.slice_threads
        total = depth * tile
        count, simplify = -(-total // threads), self.scope.analyzer.simplify
        # A texture is read by texels: neighbouring threads read the texels of neighbouring pixels.
        along_depth = side.along_depth and side.texel == (1, 1)

        def one(i):
            e = i * index(threads) + lane
            n, k = (_div(e, depth), _mod(e, depth)) if along_depth else (_mod(e, tile), _div(e, tile))
            n, k = n * index(values), k * index(terms)
            conditions = [simplify(c) for c in (begin + n < index(side.total), first + k < index(self.depth))]

            def value(v):
                moved = (begin + n + v, first + k) if values > 1 else (begin + n, first + k + v)
                across, along = map(split_index, moved, (side.vars_, self.product.depth), [self.reduction.extents] * 2)
                element = self.scope.simplify(substitute(side.value, {**place, **across, **along}))
                return guarded_value(conditions, element, _zero(self.dtype))

            def slot(v):
                return self._slot(side, part, k, n + v) if values > 1 else self._slot(side, part, k + v, n)

            fits = [] if total % threads == 0 else [simplify(e < index(total))]
            return guard(fits, self._fetch(side, value, slot))

        if count > _UNROLLED:
            return self.scope.loop(count, one, "load")
        return block(*(one(index(i)) for i in range(count)))

    def _fetch(self, side: _Side, value, slot) -> tirx.Stmt:
        """Store ``value(v)`` at ``slot(v)`` of a tile: one value, or the four of a texel, which is loaded once."""
        if side.texel == (1, 1):
            return self.scope.simplify(store(side.buffer, value(index(0)), slot(index(0))))
        numbers = registers(TEXEL, self.dtype, "texel")
        read = self.scope.loop(TEXEL, lambda v: store(numbers, value(v), v), "v", VECTOR)
        puts = [self.scope.simplify(store(side.buffer, numbers[v], slot(index(v)))) for v in range(TEXEL)]
        return allocate([numbers], block(read, *puts))

    def _slot(self, side: _Side, part, k, n):
        """Return the place of a value in a tile."""
        return (part * index(self.tile.depth) + k) * index(side.tile + self.tile.pad) + n

    def _multiply(self, sums: Sums, part, at_row, at_column) -> tirx.Stmt:
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
            fused = [each for i in range(rows) for each in sums.add(i, columns, a[i], lambda j: b[j])]
            return block(*read(self.left, a, at_row, k), *read(self.right, b, at_column, k), *fused)

        return allocate([a, b], self.scope.loop(self.tile.depth, term, "k"))

    def _merge(self, acc, part, lane, finish) -> tuple[tirx.Stmt, list]:
        """Add up the sums of the slices; each slice finishes some of the results."""
        tile, many, run = self.tile, self.tile.thread_rows * self.tile.thread_columns, self.run
        sums = shared(tile.slices * many * tile.slice_threads, self.total, "sums")

        def slot(part, e):
            return (part * index(many) + e) * index(tile.slice_threads) + lane

        spill = block(*(store(sums, acc[e], slot(part, index(e))) for e in range(many)))

        def add(q):
            first = (q * index(tile.slices) + part) * index(run)
            total = registers(run, self.total, "total")
            added = []
            for v in range(run):
                values = [sums[slot(index(each), first + index(v))] for each in range(tile.slices)]
                added.append(store(total, sum(values[1:], values[0]), v))
            return allocate([total], block(*added, finish(total, 0, first)))

        return block(spill, self.scope.loop(many // (tile.slices * run), add, "q")), [sums]

    def _store(self, values, first: int, place: dict, row, column) -> tirx.Stmt:
        """Store `run` results from ``values[first]`` on at neighbouring columns."""
        extents = self.reduction.extents
        conditions = [row < index(self.left.total), column < index(self.right.total)]
        conditions = [self.scope.analyzer.simplify(each) for each in conditions]
        rows = split_index(row, self.left.vars_, extents)
        column = index(0) if self.right.total == self.run else column  # no condition tells the stores so

        def one(v):
            point = {**place, **rows, **split_index(column + v, self.right.vars_, extents)}
            return self.scope.simplify(self.reduction.store(values[index(first) + v], point))

        return guard(conditions, self.scope.loop(self.run, one, "v", VECTOR))


def _div(value, by: int):
    return tirx.floordiv(value, index(by))


def _mod(value, by: int):
    return tirx.floormod(value, index(by))


def _zero(dtype: str):
    return tirx.const(0, dtype)
