# SPDX-License-Identifier: Apache-2.0
"""Matmuls and convolutions of numbers rounded to bfloat16, on a CPU with a tile unit.

    parallel for (batch, row chunk, column chunk):
      left[row // 16, k // 32, row % 16, k % 32] = bfloat16(...)              if it does not lie so already
      right[column // 16, k // 32, k % 32 // 2, column % 16, k % 2] = bfloat16(...)      the same
      for each block of 32 x 32 results:
        C00, C01, C10, C11 = 0                                                tile registers
        for k in steps of 32: C00 += A0 * B0; C01 += A0 * B1; ...
        done = C;  out[f(i, j)] = finish(done[i, j])                          float32, while it is hot

Sums, and all that is done with them, are float32. What surrounds an operand (padding, folded layout operators, the
end of a normalisation) is computed in float32 where it is copied, once for each task. A ragged edge is computed in
whole tiles; what lies beyond it is not stored.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ...ir.kernel import Kernel, substitute
from ..core.nest import allocate, block, index, scratch, store
from . import tile_unit
from .chunks import Chunks, in_last_chunk, of_chunk
from .matmul import MatmulEmitter, Task
from .params import CpuParams
from .rounded_plan import FLOAT, RoundedPlan
from .rule import CpuRule
from .tile_block import SPAN, Operands, multiply_block, round_line, round_lines
from .tile_unit import DEPTH, SIDE


class RoundedProduct(CpuRule):
    """The rule for contractions of numbers rounded to bfloat16."""

    def lower(self, kernel: Kernel, params: CpuParams) -> tirx.Stmt | None:
        """Schedule the kernel, or None if it is no such contraction, or the processor has no tiles."""
        plan = RoundedPlan.of(kernel, params) if params.tiles else None
        return None if plan is None else _Emitter(plan).kernel()


class _Emitter(MatmulEmitter):
    plan: RoundedPlan

    def kernel(self) -> tirx.Stmt:
        """The whole nest."""
        return block(tile_unit.ask_for_tiles(), super().kernel())

    # -- tasks ---------------------------------------------------------------------------------------------------

    def task(self, batch, row_chunk, column_chunk) -> tirx.Stmt:
        """Copy the operands of a pair of chunks, and multiply them."""
        plan = self.plan
        task = Task(batch, row_chunk, column_chunk, None)
        words, self.done = tile_unit.configuration(), scratch([SPAN, SPAN], FLOAT, "done")
        copies, buffers = [], [words, self.done]
        self.left_at, self.right_at = self._stored(plan.left), self._stored(plan.right)
        if not plan.left_in_blocks:
            copies.append(self._copy_left(task, buffers))
        if not plan.right_in_blocks:
            copies.append(self._copy_right(task, buffers))
        start = (tile_unit.configure(words), tile_unit.whole(self.done))
        nest = block(*start, *copies, self._blocks(task), tile_unit.release())
        return allocate(buffers, nest)

    def _stored(self, operand: Callable) -> Callable:
        """Where a tile of an operand is that lies in memory."""

        def at(batch, place, step):
            value = operand(batch, place, step * index(DEPTH))
            load = value.value if isinstance(value, tirx.Cast) else value
            return tile_unit.address(load.source, *map(self.scope.analyzer.simplify, load.indices))

        return at

    def _along(self, number, chunks: Chunks, total: int, body: Callable) -> tirx.Stmt:
        """``body(first, length)`` for each span of chunk `number`, the short one at the end of the last included."""
        rest, main = total % SPAN, None
        if total // SPAN:
            first = number * index(chunks.length)
            main = self.scope.loop(
                of_chunk(number, chunks), lambda t: body((first + t) * index(SPAN), SPAN), "span", most=chunks.longest
            )
        tail = [body(index(total - rest), rest)] if rest else []
        return block(main, *in_last_chunk(number, chunks, tail))

    # -- operands ------------------------------------------------------------------------------------------------

    def _copy_left(self, task: Task, buffers: list) -> tirx.Stmt:
        plan, steps = self.plan, self.plan.steps
        first = task.row_chunk * index(plan.row_chunks.length * SPAN)
        dtype = plan.contraction.left.ty.dtype
        line = scratch([steps * DEPTH], dtype, "line")
        tiles = scratch([-(-self.most_rows // SIDE), steps, SIDE, DEPTH], "uint16", "left")
        buffers += [line, tiles]

        def row(r) -> tirx.Stmt:
            left, place = plan.contraction.left, plan.point(task.batch, first + r)
            copy = self.over_depth(left, lambda k, point: store(line, substitute(left, {**place, **point}), k))
            return block(copy, round_line(self.scope, line, tiles, r, steps))

        def at(_batch, place, step):
            return tile_unit.address(tiles, tirx.floordiv(place - first, index(SIDE)), step, 0, 0)

        self.left_at = at
        zeros = self._zeros(plan.depth, steps * DEPTH, lambda k: store(line, tirx.const(0, dtype), k))
        start = (tile_unit.whole(tiles), zeros)
        return block(*start, self.scope.loop(self.rows_of(task.row_chunk), row, "row", most=self.most_rows))

    def _copy_right(self, task: Task, buffers: list) -> tirx.Stmt:
        plan, steps = self.plan, self.plan.steps
        first = task.column_chunk * index(plan.panel_chunks.length * SPAN)
        dtype = plan.contraction.right.ty.dtype
        lines = scratch([steps * DEPTH, SPAN], dtype, "lines")
        tiles = scratch(
            [-(-self._most(plan.panel_chunks, plan.columns) // SIDE), steps, DEPTH // 2, SIDE], "uint32", "right"
        )
        buffers += [lines, tiles]

        def panel(column, width: int) -> tirx.Stmt:
            where = tirx.floordiv(column - first, index(SIDE))
            copy = self.pack_panel(lines, task.batch, column, width)
            return block(copy, round_lines(self.scope, lines, tiles, where, steps, width))

        def at(_batch, place, step):
            return tile_unit.address(tiles, tirx.floordiv(place - first, index(SIDE)), step, 0, 0)

        self.right_at = at
        zeros = self._zeros(
            plan.depth,
            steps * DEPTH,
            lambda k: self._vectors(SPAN, lambda j: store(lines, tirx.const(0, dtype), k, j)),
        )
        return block(
            tile_unit.whole(tiles), zeros, self._along(task.column_chunk, plan.panel_chunks, plan.columns, panel)
        )

    def _zeros(self, first: int, end: int, body: Callable) -> tirx.Stmt | None:
        """What lies beyond the depth, so that it adds nothing."""
        return self.scope.loop(end - first, lambda k: body(index(first) + k), "k") if first < end else None

    @staticmethod
    def _most(chunks: Chunks, total: int) -> int:
        """Rows, or columns, of the largest chunk."""
        last = total - (chunks.count - 1) * chunks.length * SPAN
        return max(last, chunks.length * SPAN if chunks.count > 1 else 0)

    # -- results -------------------------------------------------------------------------------------------------

    def _blocks(self, task: Task) -> tirx.Stmt:
        """All blocks of results; the operand that was copied in the inner loop, where it is in the cache."""
        plan = self.plan
        rows, columns = (
            (task.row_chunk, plan.row_chunks, plan.rows),
            (task.column_chunk, plan.panel_chunks, plan.columns),
        )
        if plan.left_stays:
            return self._along(*rows, lambda row, h: self._line(task, columns, lambda column, w: (row, h, column, w)))
        return self._along(*columns, lambda column, w: self._line(task, rows, lambda row, h: (row, h, column, w)))

    def _line(self, task: Task, blocks: tuple, at: Callable) -> tirx.Stmt:
        """The blocks beside one that stays, one part of the depth after the other: so much of it is kept near."""
        steps, parts = self.plan.steps, self.plan.depth_parts
        if parts == 1:
            return self._along(*blocks, lambda *place: self._block(task, steps, *at(*place)))
        number, chunks, _ = blocks
        start = number * index(chunks.length * SPAN)
        kept = scratch([-(-self._most(*blocks[1:]) // SPAN), SPAN, SPAN], FLOAT, "kept")
        length = -(-steps // parts)

        def so_far(place) -> Callable:
            return lambda i, j: tile_unit.address(kept, tirx.floordiv(place - start, index(SPAN)), i, j)

        def part(first, count: int, begins: bool, ends: bool) -> tirx.Stmt:
            def one(place, extent) -> tirx.Stmt:
                before, after = (None if flag else so_far(place) for flag in (begins, ends))
                return self._block(task, count, *at(place, extent), first, before, after)

            return self._along(*blocks, one)

        last = (parts - 1) * length
        between = self.scope.loop(
            parts - 2, lambda p: part((p + index(1)) * index(length), length, False, False), "part"
        )
        ends = part(index(0), length, True, False), part(index(last), steps - last, False, True)
        return allocate([kept], block(tile_unit.whole(kept), ends[0], between if parts > 2 else None, ends[1]))

    def _block(self, task, steps: int, row, height: int, column, width: int, first=None, before=None, after=None):
        """A block of results; `before` and `after` say where sums are kept, if it is of a part of the depth."""
        first = index(0) if first is None else first

        def left_at(number: int, step):
            return self.left_at(task.batch, row + index(number * SIDE), step)

        def right_at(number: int, step):
            return self.right_at(task.batch, column + index(number * SIDE), step)

        def done(i: int, j: int):
            return tile_unit.address(self.done, i, j)

        operands = Operands(left_at, right_at, height, width, not self.plan.left_stays)
        product = multiply_block(self.scope, steps, operands, after or done, first, before)
        return product if after else block(product, self.finish(task, row, column, height, width, self.done))
