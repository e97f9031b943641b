# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a contraction of bfloat16 numbers on AMX.

    parallel for (batch, row chunk, column chunk):
      left[row // 16, k // 32, row % 16, k % 32] = bfloat16(...)              unless it is stored so already
      right[column // 16, k // 32, k % 32 // 2, column % 16, k % 2] = bfloat16(...)      the same
      for each block of 32 x 32 results: see `amx_kernel`

Sums and the epilogue are float32. The prologue of an operand (padding, folded layout operators, the end of a
normalisation) is computed in float32 while the operand is copied, once for each task. The image of a convolution is
copied as in `amx_image`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from ...core.nest import Scope, allocate, block, index, scratch, store
from ..bfloat16_plan import Bfloat16Plan
from . import amx
from .amx import DEPTH, SIDE
from .amx_block import SPAN, SumAddresses
from .amx_image import AmxImage
from .amx_kernel import AmxKernel, LeftTiles, RightTiles
from .axis import Axis, Span, Strip
from .chunks import Chunks, in_last_chunk, of_chunk
from .contraction_epilogue import ContractionEpilogue
from .contraction_nest import ContractionNest, Task
from .gemm import DepthPart, Gemm, in_parts
from .micro_kernels import FLOAT


class AmxNest(ContractionNest):
    """The tasks of a contraction on AMX."""

    plan: Bfloat16Plan

    def around(self, nest: tirx.Stmt) -> tirx.Stmt:
        """Return the tasks, after the request of the tile registers."""
        return block(amx.ask_for_tiles(), nest)

    def task_body(self, task: Task) -> tirx.Stmt:
        """Return the copies of the operands of a pair of chunks, and their product."""
        plan = self.plan
        width = plan.column_span if plan.image is None else SPAN
        words, done = amx.configuration(), scratch([SPAN, width], FLOAT, "done")
        copies, buffers = [], [words, done]
        left_at, right_at = self._stored(task, plan.left, SIDE), self._stored(task, plan.right, self._apart)
        if not plan.left_in_blocks:
            left_at = self._copy_left(task, copies, buffers)
        if plan.image is not None:
            right_at = self._copy_image(task, copies, buffers)
        elif not plan.right_in_blocks:
            right_at = self._copy_right(task, copies, buffers)
        micro = AmxKernel(
            *(self.scope, plan.steps, left_at, right_at, done),
            ContractionEpilogue(plan, self.scope, task.batch),
            left_streams=not plan.left_stays,
            apart=self._apart,
            parts=(lambda over: self._parts(task, over)) if plan.depth_parts > 1 else None,
        )
        # The inner loop reads the copied operand, which is in the cache.
        gemm = Gemm(self.scope, micro, self._rows(task), self._columns(task), rows_outside=plan.left_stays)
        start = amx.configure(words), amx.whole(done)
        return allocate(buffers, block(*start, *copies, gemm.nest(), amx.release()))

    # -- rows and columns ----------------------------------------------------------------------------------------

    def _rows(self, task: Task) -> Axis:
        return _spans(self.plan.rows, SPAN, self.plan.row_chunks, task.row_chunk)

    def _columns(self, task: Task) -> Axis:
        plan = self.plan
        if plan.image is not None:
            return _Lines(plan.image, plan.columns, plan.panel_chunks, task.column_chunk)
        return _spans(plan.columns, plan.column_span, plan.panel_chunks, task.column_chunk)

    @property
    def task_columns(self) -> Chunks:
        """The columns of each chunk, with the remainder."""
        return self.plan.panel_chunks.elements(self.plan.column_span, self.plan.columns)

    @property
    def _apart(self) -> int:
        """Columns of the result from one tile of the right operand to the next."""
        return SIDE if self.plan.image is None else self.plan.image.apart

    # -- operands ------------------------------------------------------------------------------------------------

    def _stored(self, task: Task, operand: Callable, apart: int) -> Callable:
        """Return a function that gives the address of a tile of an operand that is stored in tiles."""

        def at(place, number: int, step):
            value = operand(task.batch, place + index(number * apart), step * index(DEPTH))
            load = value.value if isinstance(value, tirx.Cast) else value
            return amx.address(load.source, *map(self.scope.analyzer.simplify, load.indices))

        return at

    def _copy_left(self, task: Task, copies: list, buffers: list) -> Callable:
        plan, first = self.plan, self.first_row(task)
        left = LeftTiles(self.scope, self.task_rows.longest, plan.depth, plan.contraction.left.ty.dtype)
        buffers += [left.line, left.tiles]

        def row(r) -> tirx.Stmt:
            return left.row(self.copies.row(task.batch, first + r, lambda value, k: store(left.line, value, k)), r)

        copies.append(block(amx.whole(left.tiles), left.padding(), self.over_rows(task, row)))
        return _copied(left.tiles, first)

    def _copy_image(self, task: Task, copies: list, buffers: list) -> Callable:
        image, chunks = self.plan.image, self.task_columns
        first = task.column_chunk * index(chunks.length)
        tiles = scratch(image.shape(-(-chunks.longest // image.columns)), "uint32", "image")
        buffers.append(tiles)
        copy = image.copy(self.scope, tiles, tirx.floordiv(first, index(image.columns)))
        copies.append(block(amx.whole(tiles), copy))
        return lambda place, number, step: image.at(tiles, place + index(number * self._apart) - first, step)

    def _copy_right(self, task: Task, copies: list, buffers: list) -> Callable:
        plan, chunks, dtype = self.plan, self.task_columns, self.plan.contraction.right.ty.dtype
        first = task.column_chunk * index(chunks.length)
        sizes, lanes = (chunks.longest, plan.depth), plan.params.lanes
        right = RightTiles(self.scope, *sizes, dtype, lanes, plan.column_span, plan.copies_steps)
        buffers += [right.lines, right.tiles]

        def panel(strip: Strip) -> tirx.Stmt:
            where, width = tirx.floordiv(strip.first - first, index(SIDE)), strip.size

            def copy(over: Callable | None = None) -> tirx.Stmt:
                return self.copies.columns(right.lines, task.batch, strip.first, width, over)

            if not plan.copies_steps:
                return right.columns(copy(), where, width)
            return right.each_step(lambda t: copy(lambda _, body: self._over_step(t, body)), where, width)

        copies.append(block(*right.start(), self._columns(task).each(self.scope, panel, "span")))
        return _copied(right.tiles, first)

    def _over_step(self, step, body: Callable) -> tirx.Stmt:
        """Return the loop over the depth of one step; `body` takes the index in the step and the iterator's value."""
        (var,) = self.plan.contraction.depth
        return self.scope.loop(DEPTH, lambda k: self.scope.simplify(body(k, {var: step * index(DEPTH) + k})), "k")

    # -- parts of the depth --------------------------------------------------------------------------------------

    def _parts(self, task: Task, over: Callable[[DepthPart], tirx.Stmt]) -> tirx.Stmt:
        """Return ``over(part)`` for each part of the depth; sums are kept between parts, block by block."""
        plan, number, chunks = self.plan, task.row_chunk, self.task_rows
        if plan.left_stays:
            number, chunks = task.column_chunk, self.task_columns
        most = int(self.scope.analyzer.simplify(self._block_of(index(chunks.longest - 1)))) + 1
        partial_sums = scratch([most, SPAN, SPAN], FLOAT, "kept")

        def so_far(row, column) -> SumAddresses:
            place = (column if plan.left_stays else row) - number * index(chunks.length)
            return SumAddresses.of(partial_sums, self._block_of(place), index(0), index(0), apart=self._apart)

        lengths = plan.depth_parts, -(-plan.steps // plan.depth_parts), plan.steps
        parts = in_parts(self.scope, lengths, so_far, over, begun=False)
        return allocate([partial_sums], block(amx.whole(partial_sums), *parts))

    def _block_of(self, place):
        """Return the number, in the inner loop, of the block that holds a row or a column."""
        image, span = self.plan.image, index(SPAN)
        if image is None:
            return tirx.floordiv(place, span)
        unit = index(image.unit)
        in_line = tirx.floordiv(tirx.floormod(place, unit), span) if image.spans > 1 else index(0)
        return tirx.floordiv(place, unit) * index(image.spans) + in_line


def _spans(total: int, span: int, chunks: Chunks, number) -> Axis:
    """Return the spans of chunk `number`, and the short one after the last."""
    rest = total % span
    ends = [Span(total - rest, 1, rest)] if rest else []
    return Axis(ends, span, chunks, number, only_ends=total < span, as_product=True)


def _copied(tiles, first) -> Callable:
    """Return the addresses of tiles in scratch memory, whose first row or column is `first`."""

    def at(place, number: int, step):
        return amx.address(tiles, tirx.floordiv(place + index(number * SIDE) - first, index(SIDE)), step, 0, 0)

    return at


@dataclass(frozen=True, eq=False)
class _Lines:
    """The columns of a task whose right operand is an image: two lines of the result, or strips of one long line."""

    image: AmxImage
    total: int
    chunks: Chunks
    chunk: tirx.PrimExpr

    def each(self, scope: Scope, body: Callable[[Strip], tirx.Stmt], _name: str = "") -> tirx.Stmt:
        """Return ``body(strip)`` for each strip in turn; no strip is numbered."""
        image, chunks = self.image, self.chunks
        first = self.chunk * index(chunks.length)

        def span(at, width: int) -> tirx.Stmt:
            return body(Strip(at, width, index(0), width))

        def line(number) -> tirx.Stmt:
            start = (first + number) * index(image.unit)
            if image.together == 2:
                return span(start, image.unit)
            rest = image.columns % SPAN
            whole = scope.loop(image.columns // SPAN, lambda t: span(start + t * index(SPAN), SPAN), "span")
            return block(whole, span(start + index(image.columns - rest), rest) if rest else None)

        lines = scope.loop(of_chunk(self.chunk, chunks), line, "line", most=chunks.longest)
        rest = self.total % image.unit  # the last line of an odd number of them
        tail = [span(index(self.total - rest), rest)] if rest else []
        whole = lines if self.total >= image.unit else None
        return block(whole, *in_last_chunk(self.chunk, chunks, tail))
