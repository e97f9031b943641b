# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of AMX for bytes, and its tasks: blocks of 32 x 32 sums, of tiles of 16 x 16 quads.

    C00, C01, C10, C11 = 0                                                tile registers
    for k in steps of 16 quads: C00 += A0 * B0; C01 += A0 * B1; ...
    done = C;  result = finish(done[i, j])                                exact sums in int32, while in the cache

A tile is loaded from where the operand is: 16 rows of the left one, each contiguous along the depth, and 16 rows of a
panel of the right one. So no operand has a layout of its own for AMX, as those of bfloat16 have (`amx_kernel`). A left
operand without a constant stride, as that of a window, is copied row by row first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ....ir.pairs import INTEGER
from ...core.nest import Scope, allocate, block, index, scratch, store
from ..quad_plan import INTEGER_BYTES, QuadPlan
from . import amx
from .amx import SIDE
from .amx_block import SPAN, Operands, SumAddresses, multiply_block
from .axis import Strip
from .contraction_epilogue import ContractionEpilogue
from .contraction_nest import MatmulNest, Task
from .gemm import WriteTile


@dataclass(frozen=True, eq=False)
class QuadTiles:
    """The micro-kernel with its operands.

    Attributes
    ----------
    left_at, right_at : callable
        ``(row or column, step)`` -> the address of the tile that begins there.
    row_bytes : int
        Bytes from a row of the left operand to the next.
    ends_within : bool
        There is no memory behind the last row, so that the last tile begins earlier, and its first sums are computed
        twice.
    done : buffer
        Scratch memory for the sums of a block.
    """

    scope: Scope
    plan: QuadPlan
    left_at: Callable
    right_at: Callable
    row_bytes: int
    ends_within: bool
    done: tirx.Buffer
    epilogue: ContractionEpilogue

    def sweep(self, _: Strip, each: Callable[[WriteTile], tirx.Stmt]) -> tirx.Stmt:
        """Return the blocks of a panel."""
        return each(self.tile)

    def tile(self, rows: Strip, columns: Strip) -> tirx.Stmt:
        """Return a block of results, and its epilogue."""
        height, width = rows.size, self.plan.tile.width
        before = max(0, SIDE - height) if self.ends_within else 0  # rows before the first one that are computed, too

        def down(a: int) -> int:
            return min(a * SIDE, height - SIDE) if self.ends_within else a * SIDE

        def left_at(a: int, step):
            return self.left_at(rows.first + index(down(a)), step)

        def right_at(b: int, step):
            return self.right_at(columns.first + index(b * SIDE), step)

        def sums_at(a: int, b: int):
            return amx.address(self.done, down(a) + before, b * SIDE)

        turned = self.plan.contraction.packing.turned
        multiply = amx.multiply_turned_bytes if turned else amx.multiply_bytes
        bytes_of_rows = self.row_bytes, width * INTEGER_BYTES
        operands = Operands(left_at, right_at, height, columns.size, True, bytes_of_rows, multiply)
        products = multiply_block(
            self.scope, self.plan.tile_steps, operands, SumAddresses(sums_at, width * INTEGER_BYTES)
        )
        prefetched = self.epilogue.prefetched(rows, columns)
        return block(prefetched, products, self.epilogue.block(_Below(self.done, before), rows, columns))


@dataclass(frozen=True, eq=False)
class _Below:
    """The rows of a buffer from one on."""

    buffer: tirx.Buffer
    first: int

    def __getitem__(self, places: tuple):
        row, column = places
        return self.buffer[row + index(self.first), column]


class QuadNest(MatmulNest):
    """The tasks of a contraction of quads on AMX."""

    plan: QuadPlan

    def around(self, nest: tirx.Stmt) -> tirx.Stmt:
        """Return the tasks, after the request of the tile registers."""
        return block(amx.ask_for_tiles(), nest)

    def task_body(self, task: Task) -> tirx.Stmt:
        """Return the copy of a task's rows, if they are copied, and its panels."""
        plan = self.plan
        words, done = amx.configuration(), scratch([SPAN, plan.tile.width], INTEGER, "done")
        buffers, copy = [words, done], None
        if plan.left_packed:
            rows = self.task_rows.longest + SIDE - 1  # a tile may begin with the last one
            packed = scratch([rows, plan.depth], INTEGER, "left")
            buffers.append(packed)
            copy = block(amx.whole(packed), self._copied_rows(task, packed))
            micro = self._with_left(task, done, lambda row, k: packed[row - self.first_row(task), k])
        else:
            micro = self._with_left(task, done, lambda row, k: plan.left(task.batch, row, k))
        start = amx.configure(words, plan.tile_depth), amx.whole(done)
        return allocate(buffers, block(*start, copy, self.over_panels(task, micro), amx.release()))

    def _copied_rows(self, task: Task, packed) -> tirx.Stmt:
        first = self.first_row(task)
        lanes = self.plan.params.lanes if self.plan.left_run > 1 else 1

        def row(r) -> tirx.Stmt:
            return self.copies.row(task.batch, first + r, lambda value, k: store(packed, value, r, k), lanes)

        return self.over_rows(task, row)

    def _with_left(self, task: Task, done, left: Callable) -> QuadTiles:
        plan = self.plan
        row_bytes = INTEGER_BYTES * (plan.depth if plan.left_packed else plan.left_row_step)

        def address(operand: Callable, place, step):
            load = self.scope.simplify(operand(place, step * index(plan.tile_depth)))
            assert isinstance(load, ir.TensorLoad)
            return tirx.address_of(load)

        def right(column, k):
            return plan.right(task.batch, column, k)

        return QuadTiles(
            *(self.scope, plan, lambda row, step: address(left, row, step)),
            *(lambda column, step: address(right, column, step), row_bytes, not plan.left_packed, done),
            ContractionEpilogue(plan, self.scope, task.batch),
        )

    def micro_kernel(self, _: Task, left: QuadTiles) -> QuadTiles:
        """Return the micro-kernel, which has its operands already."""
        return left
