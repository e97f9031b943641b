# SPDX-License-Identifier: Apache-2.0
"""Matmuls and convolutions of numbers rounded to bfloat16, on a CPU with AMX.

    parallel for (batch, row chunk, column chunk):
      left[row // 16, k // 32, row % 16, k % 32] = bfloat16(...)              unless it is stored so already
      right[column // 16, k // 32, k % 32 // 2, column % 16, k % 2] = bfloat16(...)      the same
      for each block of 32 x 32 results:
        C00, C01, C10, C11 = 0                                                tile registers
        for k in steps of 32: C00 += A0 * B0; C01 += A0 * B1; ...
        done = C;  out[f(i, j)] = finish(done[i, j])                          float32, while in the cache

Sums and the epilogue are float32. The prologue of an operand (padding, folded layout operators, the end of a
normalisation) is computed in float32 while the operand is copied, once for each task. The image of a convolution is
copied as in `amx_image`. A ragged edge is computed in whole tiles, whose surplus results are not stored.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ...ir.kernel import Kernel, substitute
from ..core.decisions import declined, noted, priced
from ..core.nest import allocate, block, index, scratch, store
from .bfloat16_plan import FLOAT, Bfloat16Plan
from .gemm import amx
from .gemm.amx import DEPTH, SIDE
from .gemm.amx_block import SPAN, Operands, Sums, multiply_block, tiles_of_line, tiles_of_lines, tiles_of_step
from .gemm.chunks import Chunks, in_last_chunk, of_chunk
from .matmul import MatmulEmitter, Task
from .params import CpuParams
from .rule import CpuRule


class Bfloat16Product(CpuRule):
    """The rule for contractions of numbers rounded to bfloat16."""

    def plan(self, kernel: Kernel, params: CpuParams) -> Bfloat16Plan | None:
        """Return the plan of a kernel, or None if it is no such contraction, or the processor has no AMX."""
        if not params.tiles:
            return declined("the processor has no AMX")
        plan = Bfloat16Plan.of(kernel, params)
        if plan is None:
            return declined("it multiplies no two numbers rounded to bfloat16")
        priced(lambda: plan.price)
        (row_parts, column_parts), parallel = plan.parts, plan.parallel
        tiles = {"height": plan.tile.height, "width": plan.tile.width, "depth_parts": plan.depth_parts}
        blocks = {"left_in_blocks": plan.left_in_blocks, "right_in_blocks": plan.right_in_blocks}
        noted("bfloat16_product", **tiles, row_parts=row_parts, column_parts=column_parts, parallel=parallel, **blocks)
        return plan

    def emit(self, plan: Bfloat16Plan) -> tirx.Stmt:
        """Return the loop nest."""
        return _Emitter(plan).kernel()


class _Emitter(MatmulEmitter):
    plan: Bfloat16Plan

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        return block(amx.ask_for_tiles(), super().kernel())

    # -- tasks ---------------------------------------------------------------------------------------------------

    def task(self, batch, row_chunk, column_chunk) -> tirx.Stmt:
        """Return the copies of the operands of a pair of chunks, and their product."""
        plan = self.plan
        task = Task(batch, row_chunk, column_chunk, None)
        width = plan.column_span if plan.image is None else SPAN
        words, self.done = amx.configuration(), scratch([SPAN, width], FLOAT, "done")
        copies, buffers = [], [words, self.done]
        self.left_at, self.right_at = self._stored(plan.left), self._stored(plan.right)
        if not plan.left_in_blocks:
            copies.append(self._copy_left(task, buffers))
        if plan.image is not None:
            copies.append(self._copy_image(task, buffers))
        elif not plan.right_in_blocks:
            copies.append(self._copy_right(task, buffers))
        start = (amx.configure(words), amx.whole(self.done))
        nest = block(*start, *copies, self._blocks(task), amx.release())
        return allocate(buffers, nest)

    def _stored(self, operand: Callable) -> Callable:
        """Return a function that gives the address of a tile of an operand that is stored in tiles."""

        def at(batch, place, step):
            value = operand(batch, place, step * index(DEPTH))
            load = value.value if isinstance(value, tirx.Cast) else value
            return amx.address(load.source, *map(self.scope.analyzer.simplify, load.indices))

        return at

    def _along_rows(self, task: Task, body: Callable) -> tirx.Stmt:
        return self._along(task.row_chunk, self.plan.row_chunks, self.plan.rows, SPAN, body)

    def _along_columns(self, task: Task, body: Callable) -> tirx.Stmt:
        if self.plan.image is not None:
            return self._along_image(task, body)
        return self._along(task.column_chunk, self.plan.panel_chunks, self.plan.columns, self.plan.column_span, body)

    def _along_image(self, task: Task, body: Callable) -> tirx.Stmt:
        """Return ``body(column, width)`` for each block: two lines of the result, or pieces of one long line."""
        image, chunks, scope = self.plan.image, self.plan.panel_chunks, self.scope
        first = task.column_chunk * index(chunks.length)

        def line(number) -> tirx.Stmt:
            start = (first + number) * index(image.unit)
            if image.together == 2:
                return body(start, image.unit)
            rest = image.columns % SPAN
            whole = scope.loop(image.columns // SPAN, lambda t: body(start + t * index(SPAN), SPAN), "span")
            return block(whole, body(start + index(image.columns - rest), rest) if rest else None)

        lines = scope.loop(of_chunk(task.column_chunk, chunks), line, "line", most=chunks.longest)
        rest = self.plan.columns % image.unit  # the last line of an odd number of them
        tail = [body(index(self.plan.columns - rest), rest)] if rest else []
        whole = lines if self.plan.columns >= image.unit else None
        return block(whole, *in_last_chunk(task.column_chunk, chunks, tail))

    def _along(self, number, chunks: Chunks, total: int, span: int, body: Callable) -> tirx.Stmt:
        """Return ``body(first, length)`` for each span of chunk `number`, and for the short one after the last."""
        rest, main = total % span, None
        if total // span:
            first = number * index(chunks.length)
            main = self.scope.loop(
                of_chunk(number, chunks), lambda t: body((first + t) * index(span), span), "span", most=chunks.longest
            )
        tail = [body(index(total - rest), rest)] if rest else []
        return block(main, *in_last_chunk(number, chunks, tail))

    # -- operands ------------------------------------------------------------------------------------------------

    def _copy_left(self, task: Task, buffers: list) -> tirx.Stmt:
        plan, steps = self.plan, self.plan.steps
        first = task.row_chunk * index(self.task_rows.length)
        dtype = plan.contraction.left.ty.dtype
        line = scratch([steps * DEPTH], dtype, "line")
        tiles = scratch([-(-self.task_rows.longest // SIDE), steps, SIDE, DEPTH], "uint16", "left")
        buffers += [line, tiles]

        def row(r) -> tirx.Stmt:
            left, place = plan.contraction.left, plan.point(task.batch, first + r)
            copy = self.over_depth(left, lambda k, point: store(line, substitute(left, {**place, **point}), k))
            return block(copy, tiles_of_line(self.scope, line, tiles, r, steps))

        def at(_batch, place, step):
            return amx.address(tiles, tirx.floordiv(place - first, index(SIDE)), step, 0, 0)

        self.left_at = at
        zeros = self._zeros(plan.depth, steps * DEPTH, lambda k: store(line, tirx.const(0, dtype), k))
        start = (amx.whole(tiles), zeros)
        return block(*start, self.over_rows(task.row_chunk, row))

    def _copy_image(self, task: Task, buffers: list) -> tirx.Stmt:
        image, chunks = self.plan.image, self.task_columns
        first = task.column_chunk * index(chunks.length)
        tiles = scratch(image.shape(-(-chunks.longest // image.columns)), "uint32", "image")
        buffers.append(tiles)
        self.right_at = lambda _batch, place, step: image.at(tiles, place - first, step)
        copy = image.copy(self.scope, tiles, tirx.floordiv(first, index(image.columns)))
        return block(amx.whole(tiles), copy)

    def _copy_right(self, task: Task, buffers: list) -> tirx.Stmt:
        plan, steps = self.plan, self.plan.steps
        first = task.column_chunk * index(self.task_columns.length)
        right = plan.contraction.right
        lines = scratch([DEPTH * (1 if plan.copies_steps else steps), plan.column_span], right.ty.dtype, "lines")
        tiles = scratch([-(-self.task_columns.longest // SIDE), steps, DEPTH // 2, SIDE], "uint32", "right")
        buffers += [lines, tiles]

        def panel(column, width: int) -> tirx.Stmt:
            where = tirx.floordiv(column - first, index(SIDE))
            if not plan.copies_steps:
                copy = self.pack_panel(lines, task.batch, column, width)
                return block(copy, tiles_of_lines(self.scope, lines, tiles, where, steps, width))

            def step(t) -> tirx.Stmt:
                copy = self.pack_panel(lines, task.batch, column, width, lambda _, body: self._over_step(t, body))
                return block(copy, tiles_of_step(self.scope, lines, index(0), tiles, where, t, width))

            return self.scope.loop(steps, step, "step")

        def at(_batch, place, step):
            return amx.address(tiles, tirx.floordiv(place - first, index(SIDE)), step, 0, 0)

        self.right_at = at
        zeros = self._zeros(
            plan.depth,
            steps * DEPTH,
            lambda k: self._vectors(SPAN, lambda j: store(lines, tirx.const(0, lines.dtype), k, j)),
        )
        return block(amx.whole(tiles), zeros, self._along_columns(task, panel))

    def _over_step(self, step, body: Callable) -> tirx.Stmt:
        """Return the loop over the depth of one step; `body` takes the index in the step and the iterator's value."""
        (var,) = self.plan.contraction.depth
        return self.scope.loop(DEPTH, lambda k: self.scope.simplify(body(k, {var: step * index(DEPTH) + k})), "k")

    def _zeros(self, first: int, end: int, body: Callable) -> tirx.Stmt | None:
        """Return the zeros that pad the depth to whole tiles, so that these add nothing."""
        return self.scope.loop(end - first, lambda k: body(index(first) + k), "k") if first < end else None

    @property
    def task_columns(self) -> Chunks:
        """The columns of each chunk, with the remainder."""
        return self.plan.panel_chunks.elements(self.plan.column_span, self.plan.columns)

    # -- results -------------------------------------------------------------------------------------------------

    def _blocks(self, task: Task) -> tirx.Stmt:
        """Return all blocks of results; the inner loop reads the copied operand, which is in the cache."""
        if self.plan.left_stays:
            return self._along_rows(task, lambda row, h: self._line(task, lambda column, w: (row, h, column, w)))
        return self._along_columns(task, lambda column, w: self._line(task, lambda row, h: (row, h, column, w)))

    def _line(self, task: Task, at: Callable) -> tirx.Stmt:
        """Return the inner loop over blocks, in each part of the depth in turn.

        The part of the operand that stays the same remains in the first-level cache; sums are kept between parts.
        """
        plan, along = self.plan, self._along_columns if self.plan.left_stays else self._along_rows
        parts, length = plan.depth_parts, -(-plan.steps // plan.depth_parts)
        if parts == 1:
            return along(task, lambda *place: self._block(task, plan.steps, *at(*place)))
        number, chunks = task.row_chunk, self.task_rows
        if plan.left_stays:
            number, chunks = task.column_chunk, self.task_columns
        most = int(self.scope.analyzer.simplify(self._block_of(index(chunks.longest - 1)))) + 1
        kept = scratch([most, SPAN, SPAN], FLOAT, "kept")

        def so_far(row, column) -> Sums:
            place = (column if plan.left_stays else row) - number * index(chunks.length)
            return Sums.of(kept, self._block_of(place), index(0), index(0), apart=self._apart)

        def part(first, count: int, begins: bool = False, ends: bool = False) -> tirx.Stmt:
            before, after = (None if flag else so_far for flag in (begins, ends))
            return along(task, lambda *place: self._block(task, count, *at(*place), first, before, after))

        def between(p) -> tirx.Stmt:
            return part((p + index(1)) * index(length), length)

        last = (parts - 1) * length
        middle = self.scope.loop(parts - 2, between, "part") if parts > 2 else None
        ends = part(index(0), length, begins=True), part(index(last), plan.steps - last, ends=True)
        return allocate([kept], block(amx.whole(kept), ends[0], middle, ends[1]))

    @property
    def _apart(self) -> int:
        """Columns of the result from one tile of the right operand to the next."""
        return SIDE if self.plan.image is None else self.plan.image.apart

    def _block_of(self, place):
        """Return the number, in the inner loop, of the block that holds a row or a column."""
        image, span = self.plan.image, index(SPAN)
        if image is None:
            return tirx.floordiv(place, span)
        unit = index(image.unit)
        in_line = tirx.floordiv(tirx.floormod(place, unit), span) if image.spans > 1 else index(0)
        return tirx.floordiv(place, unit) * index(image.spans) + in_line

    def _block(self, task, steps: int, row, height: int, column, width: int, first=None, before=None, after=None):
        """Return blocks of results; for a part of the depth, `before` and `after` are where sums are kept."""
        first, apart = index(0) if first is None else first, self._apart

        def product(beside, across: int) -> tirx.Stmt:
            def left_at(number: int, step):
                return self.left_at(task.batch, row + index(number * SIDE), step)

            def right_at(number: int, step):
                return self.right_at(task.batch, column + beside + index(number * apart), step)

            tiles = -(-across // apart)
            operands = Operands(left_at, right_at, height, tiles * SIDE, not self.plan.left_stays)
            done = after(row, column + beside) if after else Sums.of(self.done, index(0), beside, apart=apart)
            return multiply_block(
                self.scope, steps, operands, done, first, before(row, column + beside) if before else None
            )

        span = 2 * apart
        rest = width % span
        products = block(
            self.scope.loop(width // span, lambda t: product(t * index(span), span), "block")
            if width >= span
            else None,
            product(index(width - rest), rest) if rest else None,
        )
        return products if after else block(products, self.finish(task, row, column, height, width, self.done))
