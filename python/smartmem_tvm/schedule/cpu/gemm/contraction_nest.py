# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a contraction: its tasks, the sources of its operands, and what is prefetched.

    parallel for (batch, row chunk, column chunk):
      left[rows, depth] = ...                      a packed copy, unless it is read in place; if several tasks need the
                                                   same rows, all threads make one copy before the tasks
      for each panel of `width` columns:
        right[depth, width] = ...                  a packed copy, which each tile of the chunk reads again, unless it is
                                                   read in place (weights are in panels already, see `pack_weights`)
        for each tile of `height` rows:
          at[i] = ...                              the start of each row, if rows are windows, see `row_offsets`
          prefetch out[f(i, j)]                    and the tensors that the epilogue reads row by row, see `prefetch`
          acc[height, width] = start               in registers, see `fma_kernel`
          for each piece of the depth:             a few unrolled steps
            prefetch some cache lines of the next panel
            for k in piece: acc[i, j] += left[i, k] * right[k, j]
          out[f(i, j)] = finish(acc[i, j])         from the registers, or from scratch memory in the cache

Where it is faster, `narrow_kernel` computes last columns that are fewer than a vector, after each tile of the last
panel. Row and column remainders have tiles of their own, so that no loop carries a predicate.

The depth is cut into parts, with a loop over the tiles in each of them, in two cases (`MatmulPlan.depth_parts`): if a
panel of weights is too long for the second-level cache, and if a thread has one panel only, of which it prefetches a
part while it multiplies another. Elsewhere parts gained nothing with AVX2 at depths up to 3072 steps (2026-11-21, on a
processor that was not noted).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tvm import tirx

from ...core.contraction import Contraction
from ...core.nest import PARALLEL, SERIAL, Scope, allocate, block, index, scratch, store
from ...core.positions import Inside, guarded, inside
from ..matmul_plan import MatmulPlan
from ..params import CpuParams
from ..prefetch import NextPanel, NextRows, Prefetch
from .accumulators import Accumulators
from .axis import Axis, Span, Strip
from .chunks import Chunks, in_last_chunk, of_chunk
from .contraction_copies import ContractionCopies
from .contraction_epilogue import ContractionEpilogue
from .depth import FusedDepth, WalkedDepth
from .fma_kernel import FmaKernel
from .gemm import DepthPart, Gemm, MicroKernel, WriteTile, in_parts
from .micro_kernels import FLOAT, vectors
from .narrow_kernel import NarrowKernel
from .operands import Reader, Source, in_place
from .row_offsets import OffsetRows

# Cache lines of the next panel that a tile prefetches in front of each piece, at least, where the length of a call may
# leave out the other tiles. Measured: BERT at a capacity of 128, on one thread of an AMD EPYC, takes 4.7 and 5.9 ms for
# 11 and 16 positions with AVX2, 6.4 and 7.1 ms where all tiles share the prefetches; with AVX-512 11.5 ms for 37, 12.0
# with 4 lines, and 11.7 where all tiles share them (2026-11-30).
_LINES = 2


@dataclass(frozen=True, eq=False)
class Task:
    """The work of one task: the numbers of its batch, its chunk of rows and its chunk of columns."""

    batch: tirx.PrimExpr
    row_chunk: tirx.PrimExpr
    column_chunk: tirx.PrimExpr


class ContractionNest(ABC):
    """The tasks of one contraction; `task_body` gives each its micro-kernel and the sources of its operands."""

    def __init__(self, plan: MatmulPlan):
        self.plan, self.scope = plan, Scope()
        self.copies = ContractionCopies(plan, self.scope)
        self.dtype = plan.contraction.reduction.accumulator.ty.dtype
        self.lines = 1

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        plan, simplify = self.plan, self.scope.analyzer.simplify
        tasks = plan.batch * plan.row_chunks.count * plan.panel_chunks.count
        per_batch, columns = index(plan.row_chunks.count * plan.panel_chunks.count), index(plan.panel_chunks.count)

        def task(number) -> tirx.Stmt:
            batch = simplify(tirx.floordiv(number, per_batch))
            row_chunk = simplify(tirx.floordiv(tirx.floormod(number, per_batch), columns))
            return self.task_body(Task(batch, row_chunk, simplify(tirx.floormod(number, columns))))

        nest = self.scope.loop(tasks, task, "task", PARALLEL if plan.parallel and tasks > 1 else SERIAL)
        return self.around(nest)

    @abstractmethod
    def around(self, nest: tirx.Stmt) -> tirx.Stmt:
        """Return the loop over tasks, after the statements that come before all of them."""

    @abstractmethod
    def task_body(self, task: Task) -> tirx.Stmt:
        """Return the statements of one task."""

    @property
    def task_rows(self) -> Chunks:
        """The rows of each chunk, with the remainder."""
        return self.plan.row_chunks.elements(self.plan.tile.height, self.plan.rows)

    def first_row(self, task: Task):
        """Return the first row of a task."""
        return task.row_chunk * index(self.task_rows.length)

    def over_rows(self, task: Task, body: Callable) -> tirx.Stmt:
        """Return ``body(row)`` for each row of a task, counted from its first one."""
        rows = self.task_rows
        return self.scope.loop(of_chunk(task.row_chunk, rows), body, "row", most=rows.longest)


class MatmulNest(ContractionNest):
    """The tasks of a contraction on vector units: by multiply-adds, or by dot products of pairs."""

    def __init__(self, plan: MatmulPlan):
        super().__init__(plan)
        sizes = plan.batch, plan.rows, plan.depth
        self.shared = scratch(sizes, plan.contraction.left.ty.dtype, "left") if plan.left_shared else None

    def around(self, nest: tirx.Stmt) -> tirx.Stmt:
        """Return the tasks, after the copy of a left operand that all of them read."""
        return nest if self.shared is None else allocate([self.shared], block(self._copy_shared(), nest))

    def task_body(self, task: Task) -> tirx.Stmt:
        """Return the copy of a task's rows, if it has one of its own, and its panels."""
        plan = self.plan
        if self.shared is not None:
            return self.over_panels(task, in_place(lambda row, k: self.shared[task.batch, row, k]))
        if plan.left_in_place:
            rows = OffsetRows(
                self.scope, plan.contraction.left, plan.contraction.depth, lambda row: plan.point(task.batch, row)
            )
            return self.over_panels(task, rows)
        if not plan.left_packed:
            return self.over_panels(task, in_place(lambda row, k: plan.left(task.batch, row, k)))
        first = self.first_row(task)
        packed = scratch([self.task_rows.longest, plan.depth], plan.contraction.left.ty.dtype, "left")
        inside_rows = self.inside_rows(task)

        def copied(r) -> tirx.Stmt:
            return guarded(inside_rows, first + r, 1, self._copy_row(packed, (r,), task.batch, first + r))

        copy = self.over_rows(task, copied)
        return allocate([packed], block(copy, self.over_panels(task, in_place(lambda row, k: packed[row - first, k]))))

    # -- the left operand ----------------------------------------------------------------------------------------

    def _copy_shared(self) -> tirx.Stmt:
        """Return the copy of the left operand that all tasks read, made by all threads."""

        def row(number) -> tirx.Stmt:
            batch, at = (
                self.scope.index(each(number, index(self.plan.rows))) for each in (tirx.floordiv, tirx.floormod)
            )
            copy = self._copy_row(self.shared, (batch, at), batch, at)
            return guarded(self.inside_rows(Task(batch, index(0), index(0))), at, 1, copy)

        return self.scope.loop(self.plan.batch * self.plan.rows, row, "row", PARALLEL)

    def _copy_row(self, packed, at: tuple, batch, row) -> tirx.Stmt:
        lanes = self.plan.params.lanes if self.plan.left_run > 1 else 1
        return self.copies.row(batch, row, lambda value, k: store(packed, value, *at, k), lanes)

    # -- panels of the right operand -----------------------------------------------------------------------------

    def over_panels(self, task: Task, left: Source) -> tirx.Stmt:
        """Return the tiles of a task, panel by panel."""
        plan, column, tails = self.plan, self.plan.panels * self.plan.tile.width, []
        for width in plan.tails:
            tails.append(Span(column, 1, width))
            column += width
        beside = tails and plan.panels and plan.is_narrow(tails[-1].size)
        narrow = tails.pop() if beside else None
        chunks = plan.panel_chunks
        columns = Axis(
            *(tails, plan.tile.width, chunks, task.column_chunk),
            only_ends=not plan.panels,
            inside=inside(lambda column: self._stored(task, index(0), column), plan.columns, self.scope.analyzer),
        )
        rows = Axis(
            [Span(*each) for each in plan.last_tiles],
            *(plan.tile.height, plan.row_tiles, task.row_chunk),
            only_ends=not plan.row_tiles.last,
            inside=self.inside_rows(task),
            lower=True,
        )
        self.lines = 1 if rows.inside is None else _LINES
        micro = self.micro_kernel(task, left)
        if narrow is None:
            return Gemm(self.scope, micro, rows, columns).nest()
        strip = Strip(index(narrow.first), narrow.size, index(0), narrow.size)
        right = self.panel(task, strip)
        nest = Gemm(self.scope, _WithNarrowColumns(micro, right, strip), rows, columns).nest()
        return allocate(right.buffers, block(*in_last_chunk(task.column_chunk, chunks, [right.fill]), nest))

    def inside_rows(self, task: Task) -> Inside | None:
        """Return which rows of the results are before the length; None if the kernel has no length."""
        return inside(lambda row: self._stored(task, row, index(0)), self.plan.rows, self.scope.analyzer)

    def _stored(self, task: Task, row, column) -> tirx.BufferStore:
        """Return the store of a result, for its place."""
        reduction = self.plan.contraction.reduction
        return reduction.store(reduction.init, self.plan.point(task.batch, row, column))

    def micro_kernel(self, task: Task, left: Source) -> MicroKernel:
        """Return the micro-kernel of a task."""
        return _Tiles(self, task, left)

    def panel(self, task: Task, columns: Strip) -> Reader:
        """Return a panel: in place, or a copy that is contiguous along the columns (a narrow one: along the depth)."""
        plan, right, width = self.plan, self.plan.contraction.right, columns.size
        if not plan.right_packed:
            return Reader(lambda at, step: lambda j: plan.right(task.batch, at.first + j, step.number))
        if plan.is_narrow(width):
            narrow = scratch([width, plan.depth], right.ty.dtype, "narrow")
            copy = self.copies.columns_along_depth(narrow, task.batch, columns.first, width)
            return Reader(lambda _, step: lambda j: narrow[j, step.number], [narrow], copy)
        packed = scratch([plan.depth, width], right.ty.dtype, "right")
        copy = self.copies.columns(packed, task.batch, columns.first, width)
        return Reader(lambda _, step: lambda j: packed[step.number, j], [packed], copy)

    # -- prefetches and parts of the depth -----------------------------------------------------------------------

    def next_panel(self, task: Task, column, part: DepthPart | None) -> NextPanel | None:
        """Return what to prefetch: the next panel, or the next part of this one; None if that does not pay."""
        plan, width = self.plan, self.plan.tile.width
        known = plan.in_panels or (plan.right_packed and plan.right_lies_in_rows)
        ends = part is None or part.after is None
        if not known or plan.tiles_in_turn < 2 or (ends and plan.panel_chunks.length < 2):
            return None  # a panel's only tile waits for the panel itself, and a chunk of one panel has no next one
        first, after = index(0), column
        if ends:
            last = index((plan.panels - 1) * width)
            after = self.scope.analyzer.simplify(tirx.min(column + index(width), last))
        else:  # the last one may be shorter
            first = tirx.min(part.first + index(part.length), index(plan.depth - part.length))
        return NextPanel(
            plan.depth if part is None else part.length,
            width,
            plan.tiles_in_turn,
            plan.unroll,
            lambda k, j: self.scope.simplify(plan.right(task.batch, after + j, first + k)),
            self.lines,
        )

    def parts(self, task: Task, columns: Strip, over: Callable[[DepthPart], tirx.Stmt]) -> tirx.Stmt:
        """Return ``over(part)`` for each part of the depth: all tiles of a panel add up one before the next begins."""
        plan, first = self.plan, self.first_row(task)
        partial_sums = scratch([self.task_rows.longest, columns.size], self.dtype, "kept")

        def start(row) -> tirx.Stmt:
            initial = plan.contraction.reduction.init
            return self.scope.vectors(columns.size, plan.params.lanes, lambda j: store(partial_sums, initial, row, j))

        lengths = plan.depth_parts, plan.part_length, plan.depth
        parts = in_parts(self.scope, lengths, lambda rows, _: (partial_sums, rows.first - first), over, begun=True)
        return allocate([partial_sums], block(self.over_rows(task, start), *parts))


def _dots(contraction: Contraction, params: CpuParams, along: bool = False) -> Callable | None:
    """Return `FmaKernel.dots` for the operands of a contraction; with `along` that of `NarrowKernel`."""
    packing = contraction.packing
    dots = vectors(FLOAT if packing is None else packing.name, params).dots
    if dots is not None and along:
        dots = Accumulators.add_dots_along
    return None if dots is None else partial(dots, packing=packing, params=params)


class _Tiles:
    """The micro-kernels of a task: vectors lie along the columns, or along the depth where columns are few."""

    def __init__(self, nest: MatmulNest, task: Task, left: Source):
        self.nest, self.task, self.plan, self.left = nest, task, nest.plan, left
        plan, scope, contraction = nest.plan, nest.scope, nest.plan.contraction
        self.epilogue = ContractionEpilogue(plan, scope, task.batch)
        depth = FusedDepth(scope, plan.depth, plan.unroll)
        if plan.left_in_place:
            depth = WalkedDepth(scope, contraction.depth, contraction.reduction.extents, plan.depth, plan.unroll)
        self.wide = FmaKernel(
            *(scope, plan.params.lanes, nest.dtype, left, self, depth, self.epilogue),
            times=contraction.times,
            dots=_dots(contraction, plan.params),
            prefetch_ahead=self._prefetch_ahead,
            parts=self._parts if plan.depth_parts > 1 else None,
        )

    @property
    def narrow(self) -> NarrowKernel:
        """The micro-kernel whose vectors lie along the depth."""
        plan = self.plan
        sizes = plan.depth, plan.steps
        return NarrowKernel(
            *(self.nest.scope, plan.params, self.nest.dtype, self.left, self, *sizes),
            self.epilogue,
            plan.contraction.times,
            _dots(plan.contraction, plan.params, along=True),
        )

    def of(self, columns: Strip) -> Reader:
        """Return the right operand for some columns."""
        return self.nest.panel(self.task, columns)

    def sweep(self, outer: Strip, each: Callable[[WriteTile], tirx.Stmt]) -> tirx.Stmt:
        """Return the tiles of a panel."""
        kernel: MicroKernel = self.narrow if self.plan.is_narrow(outer.size) else self.wide
        return kernel.sweep(outer, each)

    def _parts(self, outer: Strip, over: Callable[[DepthPart], tirx.Stmt]) -> tirx.Stmt:
        return self.nest.parts(self.task, outer, over)

    def _prefetch_ahead(self, outer: Strip, part: DepthPart | None) -> Callable[[Strip, Strip], Prefetch | None]:
        """Return what a tile prefetches: its share of the next panel, and the rows of the next tile."""
        plan = self.plan
        coming = self.nest.next_panel(self.task, outer.first, part) if outer.size == plan.tile.width else None

        def prefetch(rows: Strip, _: Strip) -> Prefetch | None:
            found = None if coming is None else coming.of_tile(rows.number)
            if plan.prefetch_rows and part is None:
                return self._next_rows(rows).beside(found)
            return found

        return prefetch

    def _next_rows(self, rows: Strip) -> NextRows:
        scope, height, left = self.nest.scope, rows.size, self.plan.left
        row = scope.analyzer.simplify(tirx.min(rows.first + index(height), index(self.plan.rows - height)))
        return NextRows(height, self.plan.unroll, lambda i, k: scope.simplify(left(self.task.batch, row + i, k)))


@dataclass(frozen=True, eq=False)
class _WithNarrowColumns:
    """The micro-kernels of a task whose last columns are fewer than a vector.

    These columns are computed after each tile of the last panel, while its rows of the left operand are in the cache.
    """

    tiles: _Tiles
    right: Reader
    columns: Strip

    def sweep(self, outer: Strip, each: Callable[[WriteTile], tirx.Stmt]) -> tirx.Stmt:
        """Return the tiles of a panel; in the last panel, a tile of the last columns follows each of them."""
        plan = self.tiles.plan
        if outer.size != plan.tile.width:
            return self.tiles.sweep(outer, each)

        def with_narrow(tile: WriteTile) -> WriteTile:
            return lambda rows, columns: block(tile(rows, columns), self._narrow(rows, columns))

        return self.tiles.sweep(outer, lambda tile: each(with_narrow(tile)))

    def _narrow(self, rows: Strip, columns: Strip) -> tirx.Stmt:
        tile, plan = self.tiles.narrow.tile(rows, self.columns, self.right), self.tiles.plan
        place = index((plan.panels - 1) * plan.tile.width)
        last = self.tiles.nest.scope.analyzer.simplify(columns.first.equal(place))
        return tile if isinstance(last, tirx.IntImm) else tirx.IfThenElse(last, tile, None)
