# SPDX-License-Identifier: Apache-2.0
"""A product in a chain of rows (attention) whose operands are rounded to bfloat16, on AMX.

Each task packs the matrix into tiles once, and the rows of a block before it multiplies them; results are float32.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ...ir.kernel import Stage, substitute
from ..core.expressions import has_select
from ..core.nest import allocate, block, index, scratch, store
from .bfloat16_plan import FLOAT, before_bfloat16
from .gemm import amx
from .gemm.amx import DEPTH, SIDE
from .gemm.amx_block import SPAN, Operands, Sums, multiply_block, tiles_of_line, tiles_of_lines
from .panel_product import PanelProduct, is_searched
from .params import CpuParams
from .row_stages import RowStages


class Bfloat16Panels(PanelProduct):
    """One product of a chain of rows, with operands that are rounded to bfloat16."""

    def __init__(self, stages: RowStages, stage: Stage, params: CpuParams):
        super().__init__(stages, stage, params)
        self.left, self.right = before_bfloat16(self.product.left), before_bfloat16(self.product.right)
        self.steps = -(-self.depth // DEPTH)
        self.packed = scratch([-(-self.columns // SIDE), self.steps, DEPTH // 2, SIDE], "uint32", "right")

    def _along(self, total: int, body: Callable) -> tirx.Stmt:
        """Return ``body(first, length)`` for each span, and for the short one at the end."""
        main = self.scope.loop(total // SPAN, lambda t: body(t * index(SPAN), SPAN), "span") if total >= SPAN else None
        rest = total % SPAN
        return block(main, body(index(total - rest), rest) if rest else None)

    def pack(self) -> tirx.Stmt:
        """Return the copy of the current batch's matrix into tiles of bfloat16."""
        dtype, side = self.right.ty.dtype, index(SIDE)
        lines = scratch([self.steps * DEPTH, SPAN], dtype, "lines")

        def panel(column, width: int) -> tirx.Stmt:
            copy = self._copy(lines, column, width)
            return block(
                copy, tiles_of_lines(self.scope, lines, self.packed, tirx.floordiv(column, side), self.steps, width)
            )

        def zeros(k) -> tirx.Stmt:
            return self.stages.vectors(SPAN, lambda j: store(lines, tirx.const(0, dtype), index(self.depth) + k, j))

        rest = self.steps * DEPTH - self.depth
        beyond = self.scope.loop(rest, zeros, "k") if rest else None
        return allocate([lines], block(amx.whole(self.packed), beyond, self._along(self.columns, panel)))

    def _copy(self, lines, column, width: int) -> tirx.Stmt:
        lanes = self.params.lanes
        whole = 0 if is_searched(self.right, self.product.columns) else width // lanes * lanes

        def at(j) -> Callable:
            place = self.stages.point(self.stage, None, column + j)
            return lambda flat, depth: self.scope.simplify(
                store(lines, substitute(self.right, {**place, **depth}), flat, j)
            )

        def vectors(flat, depth) -> tirx.Stmt:
            return self.stages.vectors(whole, lambda j: at(j)(flat, depth))

        many = self.over_depth(vectors) if whole else None
        rest = self.scope.loop(width - whole, lambda j: self.over_depth(at(index(whole) + j)), "j")
        return block(many, rest if whole < width else None)

    def multiply(self, finish: Stage | None) -> tirx.Stmt:
        """Return the product of the current block, with the element-wise stage `finish` as its epilogue, if given."""
        rows, side, dtype = self.stages.rows, index(SIDE), self.left.ty.dtype
        line, done = scratch([self.steps * DEPTH], dtype, "line"), scratch([SPAN, SPAN], FLOAT, "done")
        tiles = scratch([-(-rows // SIDE), self.steps, SIDE, DEPTH], "uint16", "left")

        def copy(row) -> tirx.Stmt:
            return block(self._copy_row(line, row), tiles_of_line(self.scope, line, tiles, row, self.steps))

        def at(buffer, first) -> Callable:
            return lambda number, step: amx.address(buffer, tirx.floordiv(first, side) + number, step, 0, 0)

        def results(column, width: int, row, height: int) -> tirx.Stmt:
            operands = Operands(at(tiles, row), at(self.packed, column), height, width, left_streams=True)
            product = multiply_block(self.scope, self.steps, operands, Sums.of(done, index(0), index(0)))

            def one(i, j) -> tirx.Stmt:
                return self.stages.store_product(self.stage, finish, done[i, j], row + i, column + j)

            kept = self.scope.loop(height, lambda i: self.stages.vectors(width, lambda j: one(i, j)), "i")
            return block(product, kept)

        blocks = self._along(
            self.columns, lambda column, w: self._along(rows, lambda row, h: results(column, w, row, h))
        )
        rest = self.steps * DEPTH - self.depth
        beyond = self.scope.loop(rest, lambda k: store(line, tirx.const(0, dtype), index(self.depth) + k), "k")
        start = (amx.whole(tiles), amx.whole(done), beyond if rest else None)
        return allocate([line, tiles, done], block(*start, self.scope.loop(rows, copy, "row"), blocks))

    def _copy_row(self, line, row) -> tirx.Stmt:
        lanes, var = self.params.lanes, self.stage.reduction[-1]

        def at(flat, depth) -> tirx.Stmt:
            point = {**self.stages.point(self.stage, row), **depth}
            return self.scope.simplify(store(line, self.stages.value(self.left, row, point), flat))

        if len(self.stage.reduction) > 1 or has_select(self.left):
            return self.over_depth(at)
        whole = self.depth // lanes * lanes

        def one(k) -> tirx.Stmt:
            return at(k, {var: k})

        main = self.scope.loop(whole // lanes, lambda v: self.stages.vector(lambda j: one(v * index(lanes) + j)), "v")
        rest = self.scope.loop(self.depth - whole, lambda j: one(index(whole) + j), "k")
        return block(main if whole else None, rest if whole < self.depth else None)
