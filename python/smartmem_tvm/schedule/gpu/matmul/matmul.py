# SPDX-License-Identifier: Apache-2.0
"""GEMM and batched GEMM on a GPU without tensor cores: register tiles over tiles of shared memory.

    each thread block (batch, row tile, column tile), in the order of `group_order`:
      sums[i, j] = 0                                       registers of a thread
      prefetch the first tiles of both operands            global memory -> registers
      for each tile of terms:
        put the prefetched tiles                           registers -> shared memory
        prefetch the next tiles                            in flight while these are multiplied
        for k in the thread's slice of the tile:
          sums[i, j] += left[k, i] * right[k, j]           two vectors per eight results, read from shared memory
      add the sums of the other slices                     shared memory
      out[f(i, j)] = finish(sums[i, j])

Folded layout operators and the prologue are evaluated where an operand is loaded, the epilogue where a sum is stored.
Nothing is padded: rows and columns past the end repeat the last one and are not stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx

from ....ir.kernel import Kernel
from ....ir.texels import is_texture
from ....target import Limits
from ...core.decisions import decide, declined, priced
from ...core.nest import SERIAL, UNROLL, Scope, allocate, block, index, on_chip, scratch, store
from ...core.nest import VECTOR as VECTORIZED
from ..launch import GpuRule, launch, registers, shared
from ..machine import VECTOR
from ..sums import Sums, product_type
from .group_order import place_of
from .parts import add_parts
from .product import MatmulProduct, product_of
from .shared_tile import Deal, SharedTile
from .tile import GpuMatmulParams, GpuTile, best_gpu_tile, price

_ADDING = 128  # most threads of a thread block that adds partial sums (split-K)
_WARP_COLUMNS = 8  # threads of a warp along the columns: both operands of a step are then few vectors of shared memory


class GpuMatmul(GpuRule):
    """The rule for contractions of floats that have rows and columns.

    Parameters
    ----------
    params : GpuMatmulParams, optional
        By default those of the target.
    tile : GpuTile, optional
        By default the one that `best_gpu_tile` chooses.
    """

    sizes = GpuMatmulParams

    def __init__(self, params: GpuMatmulParams | None = None, tile: GpuTile | None = None):
        super().__init__(params)
        self.tile = tile

    def plan(self, kernel: Kernel, params: GpuMatmulParams) -> _Emitter | None:
        """Return how a folded kernel is tiled, or None if it is no matmul, or no tile is small enough."""
        product = product_of(kernel)
        if product is None:
            return declined("no sum of products that has rows and columns")
        texels = any(map(is_texture, (*kernel.inputs, *kernel.outputs)))
        params = params.in_texels() if texels else params
        extents = (product.batch, product.rows, product.columns, product.depth)
        tile = self.tile or best_gpu_tile(*extents, params)
        if tile is None:
            return declined("no tile of the candidates is within the limits of the target")
        limits = params.limits
        facts = dict(zip(("batch", "rows", "columns", "depth"), extents, strict=True))
        facts |= {"threads": limits.work_group, "shared": limits.shared_bytes, "texels": texels}
        tile = decide("gpu_matmul", tile, **facts)
        priced(lambda: price(tile, *extents, params))
        return _Emitter(product, tile, limits)

    def emit(self, plan: _Emitter) -> tirx.Stmt:
        """Return the whole loop nest."""
        return plan.kernel()


class _Emitter:
    def __init__(self, product: MatmulProduct, tile: GpuTile, limits: Limits):
        self.product, self.tile, self.scope = product, tile, Scope()
        self.adding = min(_ADDING, limits.work_group)  # threads of a thread block that adds partial sums
        dtype = str(product.reduction.accumulator.ty.dtype)
        factor = product_type(product.contraction)
        results, lanes = tile.thread_rows * tile.thread_columns, limits.half_lanes
        self.held = Sums(self.scope, results, factor, dtype, "sums", tile.thread_columns, lanes)
        most = max(VECTOR, self.held.lanes)
        # Neighbouring threads have neighbouring texels, so that they write a whole line of an image: it has two rows.
        texels = product.finishes_texels
        self.row_run = min(most, tile.thread_rows)
        self.column_run = min(VECTOR if texels else most, tile.thread_columns)
        deal = Deal(tile.threads_down, self.row_run) if texels else None
        self.left, self.right = (
            SharedTile(name, operand, size, tile.depth, tile.threads, factor, operand.most(limits), most, dealt)
            for name, operand, size, dealt in (
                ("left", product.left, tile.rows, deal),
                ("right", product.right, tile.columns, None),
            )
        )
        self.sums = self.held.total
        self.down = registers(tile.thread_rows, factor, "down")
        self.across = registers(tile.thread_columns, factor, "across")
        self.rounds = -(-product.depth // (tile.depth * tile.splits))
        self.others = shared((tile.slices - 1) * tile.rows * tile.columns or 1, dtype, "others")
        self.parts = scratch([tile.splits, product.batch, product.rows, product.columns], dtype, "parts")

    def kernel(self) -> tirx.Stmt:
        """Return the whole loop nest."""
        if self.tile.splits == 1:
            return self._product()
        return allocate(
            [self.parts], block(self._product(), add_parts(self.product, self.parts, self.adding, self.scope))
        )

    def _product(self) -> tirx.Stmt:
        tile, scope, product = self.tile, self.scope, self.product
        rows, columns = -(-product.rows // tile.rows), -(-product.columns // tile.columns)

        def thread(group, number):
            tiles = place_of(group, rows, columns, min(tile.band or columns, columns))
            whole = tirx.floordiv(group, index(rows * columns))
            batch, part = tirx.floormod(whole, index(product.batch)), tirx.floordiv(whole, index(product.batch))
            place = [scope.analyzer.simplify(each) for each in (part, batch, *tiles)]
            return self._thread(place, number)

        return launch(scope, tile.splits * product.batch * rows * columns, tile.threads, thread)

    def _position(self, number) -> tuple:
        """Return (row, column) of a thread of a slice: up to 8 columns, then rows, then the other columns."""
        tile, simplify = self.tile, self.scope.analyzer.simplify
        inner = math.gcd(tile.threads_across, _WARP_COLUMNS)
        row = tirx.floormod(tirx.floordiv(number, index(inner)), index(tile.threads_down))
        outer = tirx.floordiv(number, index(inner * tile.threads_down))
        return simplify(row), simplify(outer * index(inner) + tirx.floormod(number, index(inner)))

    def _thread(self, place: list, number) -> tirx.Stmt:
        """Return the statements of thread `number`, which computes the register tile at its row and column."""
        scope, rounds = self.scope, self.rounds
        threads = index(self.tile.slice_threads)
        part_of, within = (scope.analyzer.simplify(op(number, threads)) for op in (tirx.floordiv, tirx.floormod))
        row, column = self._position(within)
        part, batch, row_tile, column_tile = place
        whole = self.product.depth == rounds * self.tile.depth * self.tile.splits

        def fetch(step):
            step = part * index(rounds) + step
            return block(
                self.left.fetch(scope, number, batch, row_tile, step, whole),
                self.right.fetch(scope, number, batch, column_tile, step, whole),
            )

        def round_(step):
            put = on_chip(lambda: block(self.left.put(scope, number), self.right.put(scope, number)))
            more = tirx.IfThenElse(step < index(rounds - 1), fetch(step + index(1)), None) if rounds > 1 else None
            return block(put, more, on_chip(lambda: self._multiply(part_of, row, column)))

        init = self.product.reduction.init if self.tile.splits == 1 else tirx.const(0, self.sums.ty.dtype)
        start = scope.loop(int(self.sums.shape[0]), lambda i: store(self.sums, init, i), "i", UNROLL)
        buffers = [self.left.shared, self.right.shared, self.left.staged, self.right.staged]
        finish = self._finish(place, row, column)
        if self.tile.slices > 1:
            buffers.append(self.others)
            finish = self._add_slices(part_of, within, finish)
        body = block(start, fetch(index(0)), scope.loop(rounds, round_, "step"), finish)
        return allocate([*buffers, *self.held.buffers, self.down, self.across], body)

    # -- the micro-kernel ------------------------------------------------------------------------------------------

    def _multiply(self, part_of, row, column) -> tirx.Stmt:
        tile, scope = self.tile, self.scope
        start = part_of * index(tile.slice_depth)
        # Unrolled terms share these statements; vector loops cannot, as they have variables of their own.
        added = self._add() if self.held.lanes == 1 else []

        def step(k):
            return [
                *self._read(self.down, self.left, k, row, tile.threads_down, self.row_run),
                *self._read(self.across, self.right, k, column, tile.threads_across, self.column_run),
                *(added or self._add()),
            ]

        def steps(q):
            first = scope.analyzer.simplify(start + q * index(tile.unroll))
            return block(*(each for u in range(tile.unroll) for each in step(first + index(u))))

        return self.held.around(scope.loop(tile.slice_depth // tile.unroll, steps, "k"))

    def _add(self) -> list[tirx.Stmt]:
        rows, columns = range(self.tile.thread_rows), self.tile.thread_columns
        return [each for i in rows for each in self.held.add(i, columns, self.down[index(i)], lambda j: self.across[j])]

    def _read(self, lanes, tile: SharedTile, k, thread, threads: int, run: int) -> list[tirx.Stmt]:
        """Load a thread's lanes at term `k`: its vectors alternate with those of the other threads."""

        def vector(q: int):
            first = (thread + index(q * threads)) * index(run)
            return self._vector(run, lambda v: store(lanes, tile.shared[tile.at(first + v, k)], index(q * run) + v))

        return [vector(q) for q in range(int(lanes.shape[0]) // run)]

    def _vector(self, run: int, body: Callable) -> tirx.Stmt:
        kind = VECTORIZED if run > 1 else SERIAL
        return self.scope.loop(run, lambda v: self.scope.simplify(body(v)), "v", kind)

    def _add_slices(self, part_of, within, finish: tirx.Stmt) -> tirx.Stmt:
        """Return `finish` for the threads of the first slice, after they have added the sums of the others."""
        tile, count = self.tile, int(self.sums.shape[0])

        def other(part, i):  # neighbouring threads access neighbouring elements
            return (part * index(count) + i) * index(tile.slice_threads) + within

        def put(i):
            return store(self.others, self.sums[i], self.scope.analyzer.simplify(other(part_of - index(1), i)))

        def add(i):
            total = self.sums[i]
            for part in range(tile.slices - 1):
                total = total + self.others[self.scope.analyzer.simplify(other(index(part), i))]
            return store(self.sums, total, i)

        first = part_of < index(1)
        return block(
            tirx.IfThenElse(tirx.Not(first), self.scope.loop(count, put, "i", UNROLL), None),
            tirx.IfThenElse(first, block(self.scope.loop(count, add, "i", UNROLL), finish), None),
        )

    # -- results ---------------------------------------------------------------------------------------------------

    def _finish(self, place: list, row, column) -> tirx.Stmt:
        """Store the results that exist."""
        tile, product, run = self.tile, self.product, self.row_run

        def each(i):
            if self.left.deal is not None:
                at = i * index(tile.threads_down) + row
            else:
                at = (row + tirx.floordiv(i, index(run)) * index(tile.threads_down)) * index(run)
                at = at + tirx.floormod(i, index(run))
            at = self.scope.analyzer.simplify(place[2] * index(tile.rows) + at)
            stores = self._finish_row(place, i, at, column)
            return stores if product.rows % tile.rows == 0 else tirx.IfThenElse(at < index(product.rows), stores, None)

        return self.scope.loop(tile.thread_rows, each, "i", UNROLL)

    def _finish_row(self, place: list, i, row, column) -> tirx.Stmt:
        tile, product = self.tile, self.product
        run = self._result_run
        per_vector = self.column_run // run

        def vector(j):
            q, part = tirx.floordiv(j, index(per_vector)), tirx.floormod(j, index(per_vector))
            at = (column + q * index(tile.threads_across)) * index(per_vector) + part
            at = self.scope.analyzer.simplify(place[3] * index(tile.columns // run) + at)
            where = i * index(tile.thread_columns) + j * index(run)
            # If a row has one vector, its column is a constant 0: no condition would tell the check of texels so.
            first = index(0) if product.columns == run else at * index(run)
            stores = self._vector(run, lambda v: self._result(self.sums[where + v], place, row, first + v))
            if product.columns % tile.columns == 0:
                return stores
            return tirx.IfThenElse(at < index(product.columns // run), stores, None)

        return self.scope.loop(tile.thread_columns // run, vector, "j", UNROLL)

    @property
    def _result_run(self) -> int:
        if self.tile.splits == 1:
            return self.product.result_run(self.column_run)
        return math.gcd(self.product.columns, self.column_run)

    def _result(self, value, place: list, row, column) -> tirx.Stmt:
        part, batch = place[:2]
        if self.tile.splits > 1:
            return store(self.parts, value, part, batch, row, column)
        return self.product.result(value, batch, row, column)
