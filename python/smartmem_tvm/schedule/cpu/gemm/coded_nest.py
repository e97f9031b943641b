# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a product of few rows and a weight in codes: codes are unpacked in registers.

    left[rows, step] = x[row, step] * 16 ** -(step % 8)          once, for codes of four bits in words
    added[rows, block] = sum of x over the block                 once, where codes have a zero point
    parallel for chunk of panels, for each panel, for each strip of rows:
      for each block of steps:                                   a group, or a part of one
        acc[rows, width] = 0                                     in registers
        for each word of the block, for step in 0..7:
          acc[i, j] += left[i, step] * float(word[j] & (15 << 4 * step))      width: a panel's, or half of it
        sums[i, j] += scale[g, j] * (acc[i, j] - zero[g, j] * added[i, block])
      out[i, j] = finish(sums[i, j])

The mask leaves a code at its place in the word, where it is a multiple of ``16 ** step``: a power of two, by which the
left operand is divided exactly. So a vector of codes takes a mask, a conversion, and a multiply-add for each row. Only
the last code of a word, which holds the sign bit, is shifted.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ....ir.codes import FOUR, IN_WORD, WORD
from ...core.nest import PARALLEL, SERIAL, UNROLL, VECTOR, Scope, allocate, block, index, scratch, store
from ..coded_plan import CodedPlan
from .axis import Axis, Span, Strip
from .contraction_copies import ContractionCopies
from .contraction_epilogue import ContractionEpilogue
from .gemm import Gemm, WriteTile

_FLOAT = "float32"


class CodedNest:
    """The tasks of one product, and their micro-kernel (`gemm.MicroKernel`)."""

    def __init__(self, plan: CodedPlan):
        self.plan, self.scope, self.panels = plan, Scope(), plan.panels
        self.has_zeros = self.panels.zeros is not None or self.panels.zero != 0
        # More than TVM keeps on the stack, so it is one for all tiles of a task.
        self.done = scratch([max(span.size for span in plan.strips), self.panels.width], _FLOAT, "sums")
        self.left = scratch([plan.rows, plan.steps], _FLOAT, "left")
        self.added = scratch([plan.rows, plan.steps // plan.block], _FLOAT, "added")
        self.copies = ContractionCopies(plan, self.scope)
        self.epilogue = ContractionEpilogue(plan, self.scope, index(0))

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        plan, chunks, width = self.plan, self.plan.chunks, self.panels.width
        whole, rest = divmod(plan.columns, width)
        ends = [Span(whole * width, 1, width, rest)] if rest else []

        def task(number) -> tirx.Stmt:
            columns = Axis(ends, width, chunks, number, only_ends=not whole)
            return allocate([self.done], Gemm(self.scope, self, Axis(plan.strips), columns).nest())

        several = plan.parallel and chunks.count > 1
        nest = self.scope.loop(chunks.count, task, "task", PARALLEL if several else SERIAL)
        return allocate([self.left, *([self.added] if self.has_zeros else [])], block(self.prepared(), nest))

    # -- the left operand --------------------------------------------------------------------------------------------

    def prepared(self) -> tirx.Stmt:
        """Return the statements that make the left operand, once for all tasks."""
        return block(*(self._copy(), self._add_up(), self._divide()))

    def _copy(self) -> tirx.Stmt:
        """Return the copy of the left operand, with zeros behind the depth."""
        plan, scope, rest = self.plan, self.scope, self.plan.steps - self.plan.depth

        def row(i) -> tirx.Stmt:
            zero = tirx.const(0, _FLOAT)
            behind = scope.loop(rest, lambda k: store(self.left, zero, i, index(plan.depth) + k), "k") if rest else None
            lanes = plan.params.lanes if plan.left_run > 1 else 1
            return block(self.copies.row(None, i, lambda value, k: store(self.left, value, i, k), lanes), behind)

        return scope.loop(plan.rows, row, "row")

    def _add_up(self) -> tirx.Stmt | None:
        """Return the sums of the left operand over each block."""
        if not self.has_zeros:
            return None
        plan, scope, left, eights = self.plan, self.scope, self.left, self.plan.block // IN_WORD
        lanes = scratch([IN_WORD], _FLOAT, "lanes")

        def total(i, b) -> tirx.Stmt:
            def add(q) -> tirx.Stmt:
                first = b * index(plan.block) + q * index(IN_WORD)
                return self._eight(lambda t: store(lanes, lanes[t] + left[i, first + t], t))

            def fold(half: int) -> tirx.Stmt:
                return scope.loop(half, lambda t: store(lanes, lanes[t] + lanes[t + half], t), "t", VECTOR)

            start = self._eight(lambda t: store(lanes, tirx.const(0, _FLOAT), t))
            result = store(self.added, lanes[0], i, b)
            return allocate([lanes], block(start, scope.loop(eights, add, "q"), *map(fold, (4, 2, 1)), result))

        blocks = plan.steps // plan.block
        return scope.loop(plan.rows, lambda i: scope.loop(blocks, lambda b: total(i, b), "b"), "row")

    def _divide(self) -> tirx.Stmt | None:
        """Return the division of the left operand by the place of each step's code in its word."""
        if self.panels.bits != FOUR:
            return None
        plan, scope, left = self.plan, self.scope, self.left
        places = scratch([IN_WORD], _FLOAT, "places")
        known = [0.0625**t for t in range(IN_WORD - 1)] + [1.0]
        values = [store(places, tirx.const(value, _FLOAT), t) for t, value in enumerate(known)]

        def eight(i, q) -> tirx.Stmt:
            first = q * index(IN_WORD)
            return self._eight(lambda t: store(left, left[i, first + t] * places[t], i, first + t))

        def row(i) -> tirx.Stmt:
            return scope.loop(plan.steps // IN_WORD, lambda q: eight(i, q), "q")

        return allocate([places], block(*values, scope.loop(plan.rows, row, "row")))

    def _eight(self, body: Callable) -> tirx.Stmt:
        return self.scope.loop(IN_WORD, body, "t", VECTOR)

    # -- the micro-kernel --------------------------------------------------------------------------------------------

    def sweep(self, _outer: Strip, each: Callable[[WriteTile], tirx.Stmt]) -> tirx.Stmt:
        """Return the tiles of a panel."""
        return each(self.tile)

    def tile(self, rows: Strip, columns: Strip) -> tirx.Stmt:
        """Return one tile."""
        plan, scope, width, sums = self.plan, self.scope, self.panels.width, self.done
        panel = scope.index(tirx.floordiv(columns.first, index(width)))

        def part(number) -> tirx.Stmt:
            first = number * index(plan.tile_width)
            start = self._each(rows.size, lambda i, j: store(sums, plan.contraction.reduction.init, i, first + j))
            return block(start, self.steps_of(rows, panel, first, sums))

        over = scope.loop(width // plan.tile_width, part, "part")
        kept = Strip(columns.first, columns.kept, columns.number, columns.kept)
        return block(over, self.epilogue.block(sums, rows, kept))

    def steps_of(self, rows: Strip, panel, column, sums) -> tirx.Stmt:
        """Return the loop over the blocks of steps of a tile."""
        blocks = self.plan.steps // self.plan.block
        return self.scope.loop(blocks, lambda b: self._block(rows, panel, column, b, sums), "block")

    def _each(self, rows: int, body: Callable) -> tirx.Stmt:
        """Return ``body(row, column)`` for all results of a tile, unrolled, in vectors of columns."""
        lanes, width = self.plan.params.lanes, self.plan.tile_width
        return block(*(self.scope.vectors(width, lanes, lambda j, i=i: body(i, j)) for i in range(rows)))

    def _block(self, rows: Strip, panel, column, b, sums) -> tirx.Stmt:
        """Return the products of one block of steps for the columns of a panel from `column` on."""
        plan, scope, panels = self.plan, self.scope, self.panels
        count, width = plan.sums(rows.size), plan.tile_width
        acc = [[scratch([width], _FLOAT, "acc") for _ in range(count)] for _ in range(rows.size)]
        first = scope.index(b * index(plan.block))
        group = scope.index(tirx.floordiv(first, index(panels.group)))
        inside = scope.index(tirx.floormod(first, index(panels.group)))

        def eight(q) -> tirx.Stmt:
            def step(t: int) -> tirx.Stmt:
                def add(i: int, j) -> tirx.Stmt:
                    own = acc[i][t % count]
                    x = self.left[rows.first + i, first + q * index(IN_WORD) + t]
                    return store(own, own[j] + x * self._code(panel, group, inside, q, t, column + j), j)

                return self._each(rows.size, add)

            return block(*map(step, range(IN_WORD)))

        def scaled(i: int, j) -> tirx.Stmt:
            total = acc[i][0][j]
            for other in acc[i][1:]:
                total = total + other[j]
            if self.has_zeros:
                total = total - self._zero(panel, group, column + j) * self.added[rows.first + i, b]
            value = sums[i, column + j] + panels.scales[panel, group, column + j] * total
            return store(sums, value, i, column + j)

        zero = tirx.const(0, _FLOAT)
        start = block(
            *(scope.vectors(width, plan.params.lanes, lambda j, a=a: store(a, zero, j)) for r in acc for a in r)
        )
        steps = scope.loop(plan.block // IN_WORD, eight, "q", SERIAL if plan.block > IN_WORD else UNROLL)
        return allocate([a for row in acc for a in row], block(start, steps, self._each(rows.size, scaled)))

    def _code(self, panel, group, inside, q, t: int, j):
        """Return a code in float32; that of four bits at its place in the word, but for the last one."""
        words = self.panels.words
        if self.panels.bits != FOUR:
            return words[panel, group, inside + q * index(IN_WORD) + t, j].astype(_FLOAT)
        word = words[panel, group, tirx.floordiv(inside, index(IN_WORD)) + q, j]
        if t < IN_WORD - 1:
            return tirx.bitwise_and(word, tirx.const(15 << FOUR * t, WORD)).astype(_FLOAT)
        return tirx.bitwise_and(tirx.shift_right(word, tirx.const(FOUR * t, WORD)), tirx.const(15, WORD)).astype(_FLOAT)

    def _zero(self, panel, group, j):
        """Return the zero point of a group in float32."""
        zeros = self.panels.zeros
        return tirx.const(self.panels.zero, _FLOAT) if zeros is None else zeros[panel, group, j].astype(_FLOAT)
