# SPDX-License-Identifier: Apache-2.0
"""One product of a chain of rows: a block of rows times a matrix that a task copies once, before its first block.

The matrix is copied into the form that the micro-kernel wants: panels of whole vectors for multiply-adds, the last one
padded with zeros, or tiles of bfloat16 pairs for AMX. The surplus results of a padded panel stay in scratch memory
where it has room for them, and are otherwise not stored.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

from tvm import ir, tirx

from ....analysis.row_chain import Product
from ....ir.kernel import Stage
from ...core.decisions import decide
from ...core.expressions import Walk
from ...core.nest import allocate, block, index, scratch, store
from ..bfloat16_plan import before_bfloat16, is_bfloat16
from ..params import CpuParams
from ..row_stages import RowStages
from ..tile import Tile, best_tile, row_tiles
from . import amx
from .amx import SIDE
from .amx_block import SPAN
from .amx_kernel import AmxKernel, LeftTiles, RightTiles
from .axis import Axis, Span, Strip
from .chain_copies import ChainCopies
from .depth import EndingDepth, FusedDepth
from .fma_kernel import FmaKernel
from .gemm import Gemm, MicroKernel
from .micro_kernels import AMX, BFLOAT16, FLOAT, micro_kernel
from .operands import Reader, in_place


def on_amx(product: Product, params: CpuParams) -> bool:
    """Whether a product's micro-kernel is that of AMX."""
    return micro_kernel(BFLOAT16 if is_bfloat16(product) else FLOAT, params) is AMX


def chain_product(stages: RowStages, stage: Stage, params: CpuParams) -> ChainProduct:
    """Return a product with the micro-kernel for its numbers."""
    kind = AmxProduct if on_amx(stages.chain.products[stage], params) else FmaProduct
    return kind(stages, stage, params)


class ChainEpilogue:
    """The epilogue of a product: its store, with the element-wise stage `finish` before it if given."""

    def __init__(self, stages: RowStages, stage: Stage, finish: Stage | None):
        self.stages, self.stage, self.finish = stages, stage, finish
        self.start = stage.init.value

    def prefetched(self, _rows: Strip, _columns: Strip) -> None:
        """Return None: no prefetch."""

    def stays_in_registers(self, columns: Strip) -> bool:
        """Whether results are stored from the registers: unless some are surplus, and have no place in a block."""
        return columns.kept == columns.size or (self.finish is None and self.stages.is_kept(self.stage))

    def element(self, value, row, column) -> tirx.Stmt:
        """Return the store of one result."""
        return self.stages.store_product(self.stage, self.finish, value, row, column)

    def block(self, sums, rows: Strip, columns: Strip) -> tirx.Stmt:
        """Return the stores of a tile: in vectors, or one by one where some results are surplus."""
        scope = self.stages.scope

        def at(i, j) -> tirx.Stmt:
            return self.element(sums[i, j], rows.first + i, columns.first + j)

        def line(i) -> tirx.Stmt:
            if columns.kept < columns.size:
                return scope.loop(columns.kept, lambda j: at(i, j), "j")
            return self.stages.vectors(columns.size, lambda j: at(i, j))

        return scope.loop(rows.size, line, "i")


class ChainProduct(ABC):
    """A product of a chain of rows; `packed` is the scratch memory of its matrix.

    Attributes
    ----------
    left, right : expression
        The operands, as they are copied.
    rows, panels : Axis
        The rows of a block and the columns, in strips for the micro-kernel.
    """

    packed: tirx.Buffer
    rows: Axis
    panels: Axis

    def __init__(self, stages: RowStages, stage: Stage, params: CpuParams):
        self.stages, self.stage, self.params, self.scope = stages, stage, params, stages.scope
        self.product = stages.chain.products[stage]
        self.left, self.right = self.product.left, self.product.right
        self.columns = math.prod(stage.extents[v] for v in self.product.columns)
        self.depth = math.prod(stage.extents[v] for v in stage.reduction)
        self.copies = ChainCopies(stages, stage)

    @abstractmethod
    def pack(self) -> tirx.Stmt:
        """Return the copy of the current batch's matrix."""

    def multiply(self, finish: Stage | None) -> tirx.Stmt:
        """Return the product of the current block, with the element-wise stage `finish` as its epilogue, if given."""
        micro, buffers, before = self.prepared(ChainEpilogue(self.stages, self.stage, finish))
        return allocate(buffers, block(*before, Gemm(self.scope, micro, self.rows, self.panels).nest()))

    @abstractmethod
    def prepared(self, epilogue: ChainEpilogue) -> tuple[MicroKernel, list, list[tirx.Stmt | None]]:
        """Return the micro-kernel, the scratch memory of a block, and the statements that copy the block's rows."""


class FmaProduct(ChainProduct):
    """A product by multiply-adds."""

    def __init__(self, stages: RowStages, stage: Stage, params: CpuParams):
        super().__init__(stages, stage, params)
        self.packed = scratch([self.depth * self._padded(self.columns)], self.right.ty.dtype, "right")

    def _padded(self, width: int) -> int:
        return -(-width // self.params.lanes) * self.params.lanes

    @cached_property
    def tile(self) -> Tile:
        """The register tile, whole vectors wide."""
        ends = self.stages.keys is not None and self.stages.keys.columns(self.stage) is not None
        columns = self.params.lanes if ends else self._padded(self.columns)  # a panel that is begun is computed whole
        tile = best_tile(self.stages.rows, columns, self.params)
        sizes = {"rows": self.stages.rows, "columns": self.columns, "depth": self.depth}
        return decide("panel", Tile(tile.height, self._padded(tile.width)), **sizes, **self.params.facts)

    @cached_property
    def panels(self) -> Axis:
        """The panels of full width, and the one after them."""
        width = self.tile.width
        count, rest = divmod(self.columns, width)
        tail = self._padded(self.columns) - count * width
        spans = [Span(0, count, width)] if count else []
        inside = None if self.stages.keys is None else self.stages.keys.columns(self.stage)
        return Axis([*spans, Span(count * width, 1, tail, kept=rest)] if tail else spans, inside=inside)

    def pack(self) -> tirx.Stmt:
        """Return the copy of the current batch's matrix into panels."""
        return self.panels.each(self.scope, self._pack_panel, "panel")

    def _pack_panel(self, panel: Strip) -> tirx.Stmt:
        lanes, dtype = self.params.lanes, self.right.ty.dtype

        def put(value, step, j) -> tirx.Stmt:
            return store(self.packed, value, self._place(panel, step) + j)

        def zeros(step) -> tirx.Stmt:
            last = self._place(panel, step) + index(panel.size - lanes)
            return self.stages.vector(lambda j: store(self.packed, tirx.const(0, dtype), last + j))

        return self.copies.columns(self.right, panel, put, zeros if panel.kept < panel.size else None)

    def _place(self, panel: Strip, step):
        """Return the position of a panel's first element at a step."""
        return self.scope.analyzer.simplify(panel.first * index(self.depth) + step * index(panel.size))

    @property
    def rows(self) -> Axis:
        """The register tiles of a block of rows."""
        return Axis.whole(*row_tiles(self.stages.rows, self.tile.height), inside=self.stages.inside, lower=True)

    def prepared(self, epilogue: ChainEpilogue) -> tuple[MicroKernel, list, list[tirx.Stmt | None]]:
        """Return multiply-adds; the rows are read in place if they are contiguous."""
        left, stage = self.left, self.stage
        if isinstance(left, ir.TensorLoad) and (self.stages.is_local(left) or self._lies_along(left)):

            def read(row, k):
                return self.stages.value(left, row, self.stages.point(stage, row, None, k))

            return self._micro(read, epilogue), [], []
        rows = scratch([self.stages.rows, self.depth], left.ty.dtype, "left")

        def copy(row) -> tirx.Stmt:
            return self.copies.row(left, row, lambda value, k: store(rows, value, row, k))

        micro = self._micro(lambda row, k: rows[row, k], epilogue)
        return micro, [rows], [self.scope.loop(self.stages.rows, copy, "row")]

    def _lies_along(self, left: ir.TensorLoad) -> bool:
        """Whether a tensor's rows are contiguous along the depth, as they would be in a copy; mostly weights."""
        if len(self.stage.reduction) > 1:
            return False
        return Walk(self.stage.extents).load_stride(left, self.stage.reduction[-1]) == 1

    def _micro(self, read: Callable, epilogue: ChainEpilogue) -> FmaKernel:
        def at(panel: Strip, step) -> Callable:
            spot = self._place(panel, step.number)
            return lambda j: self.packed[spot + j]

        end = None if self.stages.keys is None else self.stages.keys.depth(self.stage)
        return FmaKernel(
            *(self.scope, self.params.lanes, self.stage.body.buffer.ty.dtype, in_place(read), Reader(at)),
            FusedDepth(self.scope, self.depth, unroll=1) if end is None else EndingDepth(self.scope, self.depth, end),
            epilogue,
        )


class AmxProduct(ChainProduct):
    """A product of bfloat16 numbers on AMX; results are float32."""

    def __init__(self, stages: RowStages, stage: Stage, params: CpuParams):
        super().__init__(stages, stage, params)
        self.left, self.right = before_bfloat16(self.product.left), before_bfloat16(self.product.right)
        self.tiles = RightTiles(self.scope, self.columns, self.depth, self.right.ty.dtype, params.lanes)
        self.packed = self.tiles.tiles

        self.rows, self.panels = _spans(stages.rows), _spans(self.columns)

    def pack(self) -> tirx.Stmt:
        """Return the copy of the current batch's matrix into tiles of bfloat16."""
        tiles, lines = self.tiles, self.tiles.lines

        def panel(strip: Strip) -> tirx.Stmt:
            copy = self.copies.columns(self.right, strip, lambda value, k, j: store(lines, value, k, j))
            return tiles.columns(copy, tirx.floordiv(strip.first, index(SIDE)), strip.size)

        copies = self.panels.each(self.scope, panel, "span")
        return allocate([lines], block(*tiles.start(), copies))

    def prepared(self, epilogue: ChainEpilogue) -> tuple[MicroKernel, list, list[tirx.Stmt | None]]:
        """Return the micro-kernel of AMX; the rows are copied into tiles."""
        rows, scope = self.stages.rows, self.scope
        left, done = LeftTiles(scope, rows, self.depth, self.left.ty.dtype), scratch([SPAN, SPAN], FLOAT, "done")

        def copy(row) -> tirx.Stmt:
            return left.row(self.copies.row(self.left, row, lambda value, k: store(left.line, value, k)), row)

        def at(buffer) -> Callable:
            side = index(SIDE)
            return lambda first, number, step: amx.address(buffer, tirx.floordiv(first, side) + number, step, 0, 0)

        micro = AmxKernel(scope, self.tiles.steps, at(left.tiles), at(self.packed), done, epilogue)
        before = [amx.whole(left.tiles), amx.whole(done), left.padding(), scope.loop(rows, copy, "row")]
        return micro, [left.line, left.tiles, done], before


def _spans(total: int) -> Axis:
    """Return the rows or columns of whole blocks, and those of the short one at the end."""
    count, rest = divmod(total, SPAN)
    spans = [(0, count, SPAN)] if count else []
    return Axis.whole(*spans, *([(total - rest, 1, rest)] if rest else []))
