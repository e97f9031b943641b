# SPDX-License-Identifier: Apache-2.0
"""A product in a chain of rows on a GPU: the rows of a block times a matrix that all rows of a batch share.

    for each part of the columns:
      sums[i, j] = 0                                        registers of a thread
      for each part of the terms:
        put the prefetched part of the matrix               registers -> shared memory
        prefetch the next one
        for k in the terms of my slice:
          sums[i, j] += left[row i, k] * matrix[k, column j]
      results[row, column] = epilogue(sum over slices)      on chip, or the result of the kernel

The left operand is row-major in shared memory, and is read four terms at a time. Slices give a product of few results
enough threads to hide latency, each with a register tile large enough that shared memory is not the bottleneck.
"""

from __future__ import annotations

from math import gcd

from tvm import tirx

from ....ir.texels import is_texture
from ...core.nest import UNROLL, block, fresh, index, on_chip, store
from ..gemm.operand import Operand
from ..gemm.prefetched_operand import PrefetchedOperand
from ..gemm.simt import Fragment, OuterProducts, as_vector, position
from ..launch import when
from ..machine import VECTOR
from ..sums import Sums
from ..vectors import computed_types, places_of, vector_run
from .chain_plan import ChainPart
from .chain_tile import left_pitch
from .row_block import RowBlock, fit

_WRITTEN_OUT = 1024  # most unrolled multiplications in the source of a product: assumed, never measured


class RowProduct:
    """Product `number` of a block of rows; the buffer `work` holds a part of its matrix, later the sums of slices."""

    def __init__(self, rows: RowBlock, part: ChainPart, number: int, work):
        self.block, self.part, self.number, self.work = rows, part, number, work
        self.plan, self.tile, self.scope = rows.plan, rows.tile, rows.scope
        self.stage, self.own = part.product, rows.tile.products[number]
        self.operands = self.plan.chain.products[self.stage]
        self.shape = self.plan.shape.products[number]
        self.columns = self.tile.columns(number)
        self.steps = -(-self.shape.depth // self.own.terms)
        self.parts = -(-self.shape.columns // self.columns)
        self.matrix = self._matrix()
        rows.buffers.append(self.matrix.staged)
        count, total = self.own.thread_rows * self.own.thread_columns, str(self.stage.body.buffer.dtype)
        together = gcd(VECTOR, self.own.thread_columns)
        lanes = rows.limits.half_lanes
        self.held = Sums(self.scope, count, rows.plan.dtype, total, f"sums{number}", together, lanes)
        self.sums = self.held.total
        rows.buffers.extend(self.held.buffers)
        self.left_registers = rows.own(self.own.thread_rows * VECTOR, f"down{number}")
        self.run = min(VECTOR, self.own.thread_columns)
        right_registers = rows.own(self.own.thread_columns, f"across{number}")
        self.right_fragment = Fragment(self.matrix, right_registers, self.tile.across(number), self.run)
        self._place()

    def _matrix(self) -> PrefetchedOperand:
        right, plan, stage = self.operands.right, self.plan, self.stage
        operand = Operand(
            lambda b, column, k: plan.at(stage, right, batch=b, column=column, depth=k),
            plan.chain.batch_count,
            self.shape.columns,
            self.shape.depth,
        )
        name = f"matrix{self.number}"
        most = operand.most(self.block.limits)
        tile = PrefetchedOperand(name, operand, self.columns, self.own.terms, self.tile.threads, plan.dtype, most)
        tile.shared = self.work
        return tile

    def _place(self) -> None:
        """Set slice, row and column of the thread."""
        simple, tile, number = self.block.simple, self.tile, self.number
        down, across = tile.down(number), tile.across(number)
        self.slice = simple(tirx.floordiv(self.block.thread, index(down * across)))
        within = simple(tirx.floormod(self.block.thread, index(down * across)))
        self.row, self.column = map(simple, position(within, down, across))

    # -- operands ----------------------------------------------------------------------------------------------------

    def fetch(self, turn) -> tirx.Stmt:
        """Prefetch the part of the matrix for iteration `turn` into registers."""
        simple = self.block.simple
        part, step = simple(tirx.floordiv(turn, index(self.steps))), simple(tirx.floormod(turn, index(self.steps)))
        whole = self.shape.depth % self.own.terms == 0
        return self.matrix.fetch(self.scope, self.block.thread, self.block.batch, part, step, whole)

    def arrange(self) -> tirx.Stmt | None:
        """Copy the left operand of the block to shared memory, unless it is there already."""
        maker = self.plan.direct(self.stage)
        if maker is not None:
            self.left, self.pitch = self.block.vector(maker)
            return None
        self.pitch = left_pitch(self.number, self.plan.shape, self.tile)
        self.left = self.block.share(self.tile.rows * self.pitch, f"left{self.number}")
        run = self._left_run()
        across = self.pitch // run
        vectors, threads = self.tile.rows * across, self.tile.threads

        def vector(c):
            number = self.block.simple(c * index(threads) + self.block.thread)
            local, k = (self.block.simple(f(number, index(across))) for f in (tirx.floordiv, tirx.floormod))

            def element(v):
                at = k * index(run) + v
                return store(self.left, self._left_value(local, at), local * index(self.pitch) + at)

            def zero(v):
                return store(self.left, tirx.const(0, self.plan.dtype), local * index(self.pitch) + k * index(run) + v)

            load = tirx.IfThenElse(
                k < index(self.shape.depth // run), self._along(run, element), self._along(run, zero)
            )
            return load if vectors % threads == 0 else when(number < index(vectors), load)

        return self.scope.loop(-(-vectors // threads), vector, "c", UNROLL)

    def _left_value(self, local, k):
        return self.block.value(self.stage, self.operands.left, local, {}, depth=k)

    def _left_run(self) -> int:
        """Return the terms of the left operand per vector load: rows on chip begin at multiples of eight elements."""
        if self.plan.inputs_of(self.operands.left) == []:
            return 1
        b, i = fresh("b"), fresh("i")
        chain = self.plan.chain

        def access(k):
            value = self.plan.at(self.stage, self.operands.left, batch=b, row=i, depth=k)
            return None if any(self.plan.maker(s) is not None for s, _ in places_of(value) or []) else places_of(value)

        return vector_run(access, self.shape.depth, {b: chain.batch_count, i: chain.row_count}, self._most_of_left())

    def _most_of_left(self) -> int:
        left, limits = self.operands.left, self.block.limits
        read = [load.source for load in self.plan.inputs_of(left)]
        if any(map(is_texture, read)):
            return VECTOR
        return max(VECTOR, limits.vector_of((str(buffer.dtype) for buffer in read), computed_types(left)))

    def _along(self, run: int, body) -> tirx.Stmt:
        return as_vector(self.scope, run, body)

    # -- the product -------------------------------------------------------------------------------------------------

    def multiply(self) -> tirx.Stmt:
        """Return the whole product, after the first part of the matrix was prefetched."""
        scope, turns = self.scope, self.parts * self.steps

        def columns(part):
            def step(s):
                turn = self.block.simple(part * index(self.steps) + s)
                more = tirx.IfThenElse(turn < index(turns - 1), self.fetch(turn + index(1)), None)
                return block(self.matrix.put(scope, self.block.thread), more if turns > 1 else None, self._terms(s))

            zero = tirx.const(0, self.sums.dtype)
            start = scope.loop(int(self.sums.shape[0]), lambda i: store(self.sums, zero, i), "i", UNROLL)
            return block(start, scope.loop(self.steps, step, "step"), self._finish(part))

        return scope.loop(self.parts, columns, "part")

    def _terms(self, step) -> tirx.Stmt:
        """Multiply the part of the matrix that is in shared memory."""
        own = self.own
        quads = max(1, min(own.depth, _WRITTEN_OUT // (own.thread_rows * own.thread_columns)) // VECTOR)
        while (own.depth // VECTOR) % quads:
            quads -= 1
        operands = self.left_registers, self.right_fragment.into
        products = OuterProducts(self.scope, self.held, own.thread_rows, own.thread_columns, *operands, VECTOR)

        def left(k) -> list[tirx.Stmt]:
            return self._rows_at(step * index(own.terms) + k)

        def right(k) -> list[tirx.Stmt]:
            return self.right_fragment.read(self.scope, self.column, k)

        first = self.slice * index(own.depth)
        return on_chip(lambda: products.over(first, own.depth, quads * VECTOR, left, right))

    def _rows_at(self, k) -> list[tirx.Stmt]:
        """Load four terms, from term `k` on, of each of this thread's rows."""

        def row(i: int):
            at = (self.row + index(i * self.tile.down(self.number))) * index(self.pitch) + k
            return self._along(VECTOR, lambda v: store(self.left_registers, self.left[at + v], index(i * VECTOR) + v))

        return [row(i) for i in range(self.own.thread_rows)]

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self, part) -> tirx.Stmt:
        """Add the slices of a part of the columns, and store its results."""
        if self.own.slices == 1:
            return self._each(lambda local, column, at: self._result(part, local, column, lambda v: self.sums[at + v]))
        size = self.tile.rows * self.columns

        def place(slice_, local, column):
            return (slice_ * index(size)) + local * index(self.columns) + column

        def lay_down(local, column, at):
            return self._along(
                self.run,
                lambda v: store(self.work, fit(self.sums[at + v], self.work), place(self.slice, local, column) + v),
            )

        return block(self._each(lay_down), self._add_slices(part, place))

    def _each(self, body) -> tirx.Stmt:
        """Return ``body(local, column, position in sums)`` for each vector of the results of this thread."""
        own, tile, number = self.own, self.tile, self.number
        per_row = own.thread_columns // self.run

        def vector(n):
            i, q = (self.block.simple(f(n, index(per_row))) for f in (tirx.floordiv, tirx.floormod))
            local = self.block.simple(self.row + i * index(tile.down(number)))
            column = self.block.simple((self.column + q * index(tile.across(number))) * index(self.run))
            return body(local, column, n * index(self.run))

        return self.scope.loop(own.thread_rows * per_row, vector, "n", UNROLL)

    def _add_slices(self, part, place) -> tirx.Stmt:
        """Add the sums of the slices: each thread adds those of some of the results."""
        across = self.columns // self.run
        vectors, threads = self.tile.rows * across, self.tile.threads

        def vector(c):
            number = self.block.simple(c * index(threads) + self.block.thread)
            local, q = (self.block.simple(f(number, index(across))) for f in (tirx.floordiv, tirx.floormod))
            column = self.block.simple(q * index(self.run))

            def total(v):
                parts = [self.work[place(index(s), local, column) + v] for s in range(self.own.slices)]
                return sum((fit(each, self.sums) for each in parts[1:]), start=fit(parts[0], self.sums))

            body = self._result(part, local, column, total)
            return body if vectors % threads == 0 else when(number < index(vectors), body)

        return self.scope.loop(-(-vectors // threads), vector, "c", UNROLL)

    def _result(self, part, local, column, value) -> tirx.Stmt:
        """Store the results ``value(v)`` of `run` columns from `column` of `part` on."""
        first = self.block.simple(part * index(self.columns) + column)
        if self.stage in self.plan.slot_of:
            buffer, pitch = self.block.vector(self.stage)
            return self._along(
                self.run, lambda v: store(buffer, fit(value(v), buffer), local * index(pitch) + first + v)
            )
        run = self._result_run

        def vector(q):
            at = self.block.simple(first + q * index(run))
            body = self._along(run, lambda v: self._leave(value(q * index(run) + v), local, at + v))
            return body if self.shape.columns % self.columns == 0 else when(at < index(self.shape.columns), body)

        return when(self.block.exists(local), self.scope.loop(self.run // run, vector, "q", UNROLL))

    def _leave(self, value, local, column) -> tirx.Stmt:
        finish = self.part.finish
        if finish is None:
            return self.block.leave(self.stage, value, local, column)
        given = {self.stage.body.buffer: value}
        done = self.block.value(finish, finish.body.value, local, given, column=column)
        return self.block.leave(finish, done, local, column)

    @property
    def _result_run(self) -> int:
        """Columns whose results are finished and stored as one vector; a whole texel if the result is a texture."""
        b, i = fresh("b"), fresh("i")
        plan, chain = self.plan, self.plan.chain
        last = self.part.finish or self.stage
        if is_texture(last.body.buffer):
            return self.run

        def access(j):
            point = {"batch": b, "row": i, "column": j}
            stored = (last.body.buffer, tuple(plan.at(last, at, **point) for at in last.body.indices))
            if self.part.finish is None:
                return [stored]
            read = places_of(plan.at(last, last.body.value, **point))
            return None if read is None else [stored, *(p for p in read if plan.maker(p[0]) is None)]

        return vector_run(access, self.shape.columns, {b: chain.batch_count, i: chain.row_count}, self.run)
