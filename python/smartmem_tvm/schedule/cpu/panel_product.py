# SPDX-License-Identifier: Apache-2.0
"""The product of a block of rows with a matrix in panels: register tiles of whole vectors only.

The last panel is padded with zeros to a whole vector. The surplus results stay in scratch memory where it has room for
them, and are otherwise not stored.
"""

from __future__ import annotations

import math
from functools import cached_property

from tvm import ir, tirx

from ...ir.index_map import is_if_then_else
from ...ir.kernel import Stage, substitute
from ...ir.walk import collect, contains, loads
from ..core.decisions import decide
from ..core.expressions import Walk, has_select, uses
from ..core.nest import allocate, block, index, scratch, store
from .gemm.accumulators import Accumulators
from .params import CpuParams
from .row_stages import RowStages
from .tile import Tile, best_tile, row_tiles


class PanelProduct:
    """One product of a chain of rows."""

    def __init__(self, stages: RowStages, stage: Stage, params: CpuParams):
        self.stages, self.stage, self.params, self.scope = stages, stage, params, stages.scope
        self.product = stages.chain.products[stage]
        self.columns = math.prod(stage.extents[v] for v in self.product.columns)
        self.depth = math.prod(stage.extents[v] for v in stage.reduction)
        dtype = self.product.right.ty.dtype
        self.packed = scratch([self.depth * self._padded(self.columns)], dtype, "right")

    def _padded(self, width: int) -> int:
        return -(-width // self.params.lanes) * self.params.lanes

    @cached_property
    def tile(self) -> Tile:
        """The register tile, whole vectors wide."""
        tile = best_tile(self.stages.rows, self._padded(self.columns), self.params)
        sizes = {"rows": self.stages.rows, "columns": self.columns, "depth": self.depth}
        return decide("panel", Tile(tile.height, self._padded(tile.width)), **sizes, **self.params.facts)

    @cached_property
    def panels(self) -> list[tuple[int, int, int]]:
        """(first column, number of panels, width) of the panels of full width and of the one after them."""
        width, total = self.tile.width, self._padded(self.columns)
        count = self.columns // width
        tail = total - count * width
        found = [(0, count, width)] if count else []
        return [*found, (count * width, 1, tail)] if tail else found

    # -- packing -------------------------------------------------------------------------------------------------

    def pack(self) -> tirx.Stmt:
        """Return the copy of the current batch's matrix into panels."""
        return block(
            *(
                self.scope.loop(
                    count, lambda p, f=first, w=width: self._pack_panel(index(f) + p * index(w), f, w), "panel"
                )
                for first, count, width in self.panels
            )
        )

    def _pack_panel(self, column, first: int, width: int) -> tirx.Stmt:
        lanes, right = self.params.lanes, self.product.right
        real = min(width, self.columns - first)
        whole = 0 if is_searched(right, self.product.columns) else real // lanes * lanes

        def at(j):
            place = self.stages.point(self.stage, None, column + j)

            def copy(flat, depth):
                value = substitute(right, {**place, **depth})
                return self.scope.simplify(store(self.packed, value, self._place(column, flat, width) + j))

            return copy

        def fill(flat, _):
            spot = self._place(column, flat, width) + index(width - lanes)
            return self.stages.vector(lambda j: store(self.packed, tirx.const(0, right.ty.dtype), spot + j))

        def vectors(flat, depth):
            return self.stages.vectors(whole, lambda j: at(j)(flat, depth))

        def one(flat, depth):
            return block(fill(flat, depth) if real < width else None, vectors(flat, depth) if whole else None)

        many = self.over_depth(one) if whole or real < width else None
        # Column by column, so that each column's address is computed once.
        rest = self.scope.loop(real - whole, lambda j: self.over_depth(at(index(whole) + j)), "j")
        return block(many, rest if whole < real else None)

    def _place(self, column, depth, width: int):
        """Return the position of the first element at `depth` of the panel that begins at `column`."""
        return self.scope.analyzer.simplify(column * index(self.depth) + depth * index(width))

    def over_depth(self, body) -> tirx.Stmt:
        """Return one loop for each depth iterator, so that no index is divided; `body` also takes the fused index."""
        vars_, extents = self.stage.reduction, self.stage.extents

        def nest(level: int, flat, point: dict) -> tirx.Stmt:
            if level == len(vars_):
                return body(flat, point)
            var = vars_[level]
            return self.scope.loop(
                extents[var],
                lambda v: nest(level + 1, flat * index(extents[var]) + v, {**point, var: v}),
                f"k{level}",
            )

        return nest(0, index(0), {})

    # -- multiplication ------------------------------------------------------------------------------------------

    def multiply(self, finish: Stage | None) -> tirx.Stmt:
        """Return the product of the current block, with the element-wise stage `finish` as its epilogue, if given."""
        left, stage = self.product.left, self.stage
        if isinstance(left, ir.TensorLoad) and (self.stages.is_local(left) or self._lies_along(left)):
            return self._panels(
                lambda row, k: self.stages.value(left, row, self.stages.point(stage, row, None, k)), finish
            )
        rows = scratch([self.stages.rows, self.depth], left.ty.dtype, "left")
        pack = self.scope.loop(self.stages.rows, lambda row: self._pack_row(rows, row), "row")
        return allocate([rows], block(pack, self._panels(lambda row, k: rows[row, k], finish)))

    def _lies_along(self, left: ir.TensorLoad) -> bool:
        """Whether a tensor's rows are contiguous along the depth, as they would be in a copy; mostly weights."""
        if len(self.stage.reduction) > 1:
            return False
        return Walk(self.stage.extents).load_stride(left, self.stage.reduction[-1]) == 1

    def _pack_row(self, rows, row) -> tirx.Stmt:
        left, lanes, var = self.product.left, self.params.lanes, self.stage.reduction[-1]

        def at(flat, depth):
            point = {**self.stages.point(self.stage, row), **depth}
            return self.scope.simplify(store(rows, self.stages.value(left, row, point), row, flat))

        if len(self.stage.reduction) > 1 or self.depth % lanes or has_select(left):
            return self.over_depth(at)
        return self.scope.loop(
            self.depth // lanes,
            lambda v: self.stages.vector(lambda j: at(v * index(lanes) + j, {var: v * index(lanes) + j})),
            "v",
        )

    def _panels(self, left, finish) -> tirx.Stmt:
        statements = []
        for first, count, width in self.panels:
            real = min(width, self.columns - first)

            def panel(p, first=first, width=width, real=real):
                return self._tiles(index(first) + p * index(width), width, real, left, finish)

            statements.append(self.scope.loop(count, panel, "panel"))
        return block(*statements)

    def _tiles(self, column, width: int, real: int, left, finish) -> tirx.Stmt:
        def tiles(first: int, height: int):
            return lambda t: self._tile(index(first) + t * index(height), height, column, width, real, left, finish)

        found = row_tiles(self.stages.rows, self.tile.height)
        return block(*(self.scope.loop(n, tiles(first, height), "tile") for first, n, height in found))

    def _tile(self, row, height: int, column, width: int, real: int, left, finish) -> tirx.Stmt:
        dtype = self.stage.body.buffer.ty.dtype
        acc = Accumulators(self.scope, height, width, self.params.lanes, dtype)

        def add(k):
            spot = self._place(column, k, width)
            return acc.set(lambda i, j, value: value + left(row + i, k) * self.packed[spot + j])

        start = acc.set(lambda i, j, _: self.stage.init.value)
        total = self.scope.loop(self.depth, add, "k")

        def result(i, j, value):
            return self.stages.store_product(self.stage, finish, value, row + i, column + j)

        if real == width or (finish is None and self.stages.is_kept(self.stage)):
            return acc.allocate(start, total, acc.each(result))
        done = scratch([height, width], dtype, "done")
        spill = acc.each(lambda i, j, value: store(done, value, i, j))
        store_real = self.scope.loop(
            height, lambda i: self.scope.loop(real, lambda j: result(i, j, done[i, j]), "j"), "i"
        )
        return allocate([done], acc.allocate(start, total, spill, store_real))


def is_searched(expr, columns: tuple) -> bool:
    """Whether a condition or another load decides the addresses of columns, so that no vector load reads them."""
    if contains(expr, ir.Call, is_if_then_else):
        return True
    inside = [i for load in loads(expr) for i in load.indices]
    conditions = [select.condition for select in collect(expr, tirx.Select)]
    gathers = [load for index_ in inside for load in loads(index_)]
    return any(uses(node, columns) for node in (*conditions, *gathers))
