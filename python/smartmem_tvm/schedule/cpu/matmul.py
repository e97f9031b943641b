# SPDX-License-Identifier: Apache-2.0
"""Matmul, batched matmul and convolution on a CPU: register tiles over packed panels.

    parallel for (batch, row chunk, column chunk):
      left[rows, depth] = ...                      unless it can be read in place; where several tasks need the same
                                                   copy, all threads make it once, before
      for each panel of `width` columns:
        right[depth, width] = ...                  contiguous, read again by every tile of the chunk (weights
                                                   are in panels already, see `pack_weights`)
        for each tile of `height` rows:
          at[i] = ...                              the start of each row, if rows are windows, see `row_places`
          prefetch out[f(i, j)]                    and the tensors that `finish` reads row by row, see `prefetch`
          acc[height, width] = 0                   registers; if the last columns are fewer than a vector, each of their
                                                   sums is a vector along the depth, beside the last panel
          for each piece of depth:
            prefetch some lines of the next panel
            for k in piece: acc[i, j] += left[i, k] * right[k, j]
          out[f(i, j)] = finish(acc[i, j])         while it is hot

Folded layout operators, padding and prologue arithmetic are evaluated in the packing loops, once per panel, not once
per multiplication. Row and column remainders have tiles of their own, so that no loop carries a predicate. The depth
is cut into parts only where a panel of weights is too long for the second-level cache (`MatmulPlan.depth_parts`): with
panels this narrow, parts gained nothing on AVX2 at depths up to 3072.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from ...ir.blends import branches
from ...ir.kernel import Kernel, substitute
from ..core.contraction import contraction_of
from ..core.decisions import decide, declined, given_value, priced
from ..core.expressions import chooses_along, intervals, piece_length, size
from ..core.nest import PARALLEL, SERIAL, UNROLL, VECTOR, Scope, allocate, block, index, scratch, store
from ..core.reduction import reduction_of
from .accumulators import Accumulators
from .chunks import Chunks, in_last_chunk, of_chunk
from .matmul_plan import GivenPlan, MatmulPlan
from .params import CpuParams
from .prefetch import Ask, NextPanel, NextRows, ask_for_results, in_pieces
from .row_places import RowPlaces
from .rule import CpuRule
from .tile import narrow_rows, row_tiles

_SMALL_FINISH = 12  # nodes of an epilogue, up to which it is computed on the registers


class Matmul(CpuRule):
    """The rule for contractions that have rows and columns."""

    def emit(self, plan: MatmulPlan) -> tirx.Stmt:
        """Return the loop nest."""
        return MatmulEmitter(plan).kernel()

    @staticmethod
    def plan(kernel: Kernel, params: CpuParams, constants: Sequence = ()) -> MatmulPlan | None:
        """Return the plan of a prepared kernel, or None if it is no contraction.

        Parameters
        ----------
        constants : sequence of buffer
            Inputs whose values are known at compile time, so that they can be packed then.
        """
        reduction = reduction_of(kernel)
        contraction = contraction_of(reduction, pairs=True) if reduction is not None else None
        if contraction is None:
            return declined("no sum of products of two operands" if reduction else "not one reduction")
        if not (contraction.rows or contraction.columns):
            return declined("its results share no operand: there are neither rows nor columns")
        ways = [MatmulPlan(way, params, tuple(constants)) for way in (contraction, contraction.swapped())]
        given = given_value("matmul", "swapped")
        best = ways[given] if given is not None else min(ways, key=MatmulPlan.working)
        facts = {**ways[0].facts, "left_constant": int(ways[1].right_constant)}
        vector = not (contraction.rows and contraction.columns)
        if vector and given is None and (best.left_packed or best.right_packed):
            return declined("a vector times a matrix, each element of which is read once, and would be copied first")
        choice = decide("matmul", best.choice(best is ways[1]), **facts)
        plan = GivenPlan(ways[choice.swapped], choice)
        own = ways[choice.swapped]
        priced(lambda: (own if choice == own.choice(choice.swapped) else plan).price)
        return plan


def loop_orders(kernel: Kernel) -> tuple[dict[str, int], ...]:
    """Return the loop orders of a matmul as decisions: the rule's own; the two orientations of rows and columns."""
    reduction = reduction_of(kernel)
    contraction = contraction_of(reduction, pairs=True) if reduction is not None else None
    if contraction is None or not contraction.rows or not contraction.columns:
        return ({},)
    return ({}, {"matmul.swapped": 0}, {"matmul.swapped": 1})


@dataclass(frozen=True, eq=False)
class Task:
    """The work of one task: its batch and chunks, and a function that reads the left operand at (row, fused depth)."""

    batch: object
    row_chunk: object
    column_chunk: object
    left: Callable


@dataclass(frozen=True, eq=False)
class Copied:
    """Columns of the right operand in scratch memory: `pack` writes them, `right` reads them at (depth, column)."""

    column: object
    width: int
    packed: object
    pack: tirx.Stmt
    right: Callable


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the depth: its sums start from `kept`, whose first row is `first_row`, and go back there.

    If the part `ends` the depth, the sums are finished instead.
    """

    first: object
    length: int
    kept: object
    first_row: object
    ends: bool


class MatmulEmitter:
    """The emitter of the loop nest of one contraction."""

    def __init__(self, plan: MatmulPlan):
        self.plan = plan
        self.params = plan.params
        self.reduction = plan.contraction.reduction
        self.scope = Scope()
        sizes = plan.batch, plan.rows, plan.depth
        self.left = scratch(sizes, plan.contraction.left.ty.dtype, "left") if plan.left_shared else None

    # -- tasks ---------------------------------------------------------------------------------------------------

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        plan = self.plan
        tasks = plan.batch * plan.row_chunks.count * plan.panel_chunks.count
        nest = self.scope.loop(tasks, self._task, "task", PARALLEL if plan.parallel and tasks > 1 else SERIAL)
        return nest if self.left is None else allocate([self.left], block(self._copy_left(self.left), nest))

    def _copy_left(self, whole) -> tirx.Stmt:
        """Return the copy of the left operand that all tasks read, made by all threads."""

        def row(number) -> tirx.Stmt:
            batch, at = (
                self.scope.index(each(number, index(self.plan.rows))) for each in (tirx.floordiv, tirx.floormod)
            )
            return self._pack_row(whole, (batch, at), batch, at)

        return self.scope.loop(self.plan.batch * self.plan.rows, row, "row", PARALLEL)

    def _task(self, number) -> tirx.Stmt:
        plan, simplify = self.plan, self.scope.analyzer.simplify
        per_batch, columns = index(plan.row_chunks.count * plan.panel_chunks.count), index(plan.panel_chunks.count)
        batch = simplify(tirx.floordiv(number, per_batch))
        row_chunk = simplify(tirx.floordiv(tirx.floormod(number, per_batch), columns))
        return self.task(batch, row_chunk, simplify(tirx.floormod(number, columns)))

    def task(self, batch, row_chunk, column_chunk) -> tirx.Stmt:
        """Return the statements of one task."""
        plan = self.plan
        if self.left is not None:
            return self._panels(Task(batch, row_chunk, column_chunk, lambda row, k: self.left[batch, row, k]))
        if not plan.left_packed:
            return self._panels(Task(batch, row_chunk, column_chunk, lambda row, k: plan.left(batch, row, k)))
        first = row_chunk * index(self.task_rows.length)
        packed = scratch([self.task_rows.longest, plan.depth], plan.contraction.left.ty.dtype, "left")
        task = Task(batch, row_chunk, column_chunk, lambda row, k: packed[row - first, k])
        pack = self.over_rows(row_chunk, lambda r: self._pack_row(packed, (r,), batch, first + r))
        return allocate([packed], block(pack, self._panels(task)))

    def _pack_row(self, packed, at: tuple, batch, row) -> tirx.Stmt:
        plan = self.plan
        left, place = plan.contraction.left, plan.point(batch, row)

        def copy(k, point: dict) -> tirx.Stmt:
            return store(packed, substitute(left, {**place, **point}), *at, k)

        return self.over_depth(left, copy, self.params.lanes if plan.left_run > 1 else 1)

    @property
    def task_rows(self) -> Chunks:
        """The rows of each chunk, with the remainder."""
        return self.plan.row_chunks.elements(self.plan.tile.height, self.plan.rows)

    def over_rows(self, row_chunk, body: Callable) -> tirx.Stmt:
        """Return ``body(row)`` for each row of a chunk, counted from its first one."""
        rows = self.task_rows
        return self.scope.loop(of_chunk(row_chunk, rows), body, "row", most=rows.longest)

    # -- panels --------------------------------------------------------------------------------------------------

    def _panels(self, task: Task) -> tirx.Stmt:
        plan, chunks, width = self.plan, self.plan.panel_chunks, self.plan.tile.width
        column, tails = plan.panels * width, []
        for tail in plan.tails:
            tails.append((index(column), tail))
            column += tail
        has_narrow = tails and plan.panels and plan.is_narrow(tails[-1][1])
        narrow = self._copied(task, *tails.pop()) if has_narrow else None
        wide = in_last_chunk(task.column_chunk, chunks, [self._panel(task, *tail) for tail in tails])

        def panel(p):
            column = self.scope.analyzer.simplify((task.column_chunk * index(chunks.length) + p) * index(width))
            return self._panel(task, column, width, narrow)

        count = of_chunk(task.column_chunk, chunks)
        panels = self.scope.loop(count, panel, "panel", most=chunks.longest) if plan.panels else None
        if narrow is None:
            return block(panels, *wide)
        return allocate([narrow.packed], block(*in_last_chunk(task.column_chunk, chunks, [narrow.pack]), panels, *wide))

    def _panel(self, task: Task, column, width: int, beside: Copied | None = None) -> tirx.Stmt:
        plan = self.plan
        if not plan.right_packed:
            return self._tiles(task, column, width, lambda k, j: plan.right(task.batch, column + j, k))
        panel = self._copied(task, column, width)
        tiles = self._tiles(task, column, width, panel.right, beside)
        return allocate([panel.packed], block(panel.pack, tiles))

    def _copied(self, task: Task, column, width: int) -> Copied:
        """Return a copy of a panel, contiguous along the columns, or for a narrow panel along the depth."""
        plan, right = self.plan, self.plan.contraction.right
        if not plan.is_narrow(width):
            packed = scratch([plan.depth, width], right.ty.dtype, "right")
            pack = self.pack_panel(packed, task.batch, column, width)
            return Copied(column, width, packed, pack, lambda k, j: packed[k, j])
        narrow = scratch([width, plan.depth], right.ty.dtype, "narrow")
        copy = self._copy_of(narrow, task.batch, column, lambda k, j: (j, k))
        return Copied(column, width, narrow, self._one_by_one(width, copy), lambda k, j: narrow[j, k])

    def _copy_of(self, packed, batch, column, place: Callable) -> Callable:
        """Return a function of a column that copies its element at a step to ``packed[place(step, column)]``."""
        plan, right = self.plan, self.plan.contraction.right

        def copy(j):
            point = plan.point(batch, None, column + j)
            return lambda k, depth: store(packed, substitute(right, {**point, **depth}), *place(k, j))

        return copy

    def _one_by_one(self, width: int, copy: Callable, over: Callable | None = None) -> tirx.Stmt:
        """Return the copy of one column after the other, so that each column's address is computed once."""
        right, over = self.plan.contraction.right, over or self.over_depth
        return self.scope.loop(width, lambda j: over(right, copy(j)), "j")

    def _next_panel(self, task: Task, column, part: Part | None = None) -> NextPanel | None:
        """Return the next panel to prefetch, or the next part of this panel; None if it is not worth a prefetch."""
        plan, width = self.plan, self.plan.tile.width
        known = plan.in_panels or (plan.right_packed and plan.right_lies_in_rows)
        ends = part is None or part.ends
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
        )

    def pack_panel(self, packed, batch, column, width: int, over: Callable | None = None) -> tirx.Stmt:
        """Return the copy of a panel's columns; `over` makes the loops over the depth, or over a part of it."""
        plan, right, run = self.plan, self.plan.contraction.right, self.plan.right_run(width)
        copy = self._copy_of(packed, batch, column, lambda k, j: (k, j))
        if run == 1 and width % self.params.lanes == 0 and not chooses_along(right, plan.contraction.columns):
            run = self.params.lanes  # gathered element by element, stored as a vector
        if run == 1:
            return self._one_by_one(width, copy, over)

        def row(k, point):
            return self.scope.loop(
                width // run,
                lambda r: self.scope.loop(
                    run, lambda j: self.scope.simplify(copy(r * index(run) + j)(k, point)), "j", VECTOR
                ),
                "r",
                UNROLL,
            )

        return (over or self.over_depth)(right, row)

    def over_depth(self, operand, body, lanes: int = 1) -> tirx.Stmt:
        """Return one loop for each depth iterator, so that no index is divided; `body` takes the fused index as well.

        Parameters
        ----------
        lanes : int
            SIMD lanes of the innermost loop, 1 for a scalar loop. It stays scalar if it is split because of a ``//`` or
            ``%`` in an index.
        """
        depth, extents = self.plan.contraction.depth, self.reduction.extents

        def nest(level: int, flat, point: dict) -> tirx.Stmt:
            if level == len(depth):
                return self.scope.simplify(body(flat, point))
            var = depth[level]

            def at(v):
                return nest(level + 1, flat * index(extents[var]) + v, {**point, var: v})

            parts, piece = intervals(operand, var, extents), piece_length(operand, var, extents)
            of_line = lanes if var is depth[-1] else 1
            if len(parts) > 1:  # joined tensors: each has a loop of its own, without the condition
                lines = (self.scope.line(n, of_line, lambda v, s=s: at(index(s) + v), f"k{level}") for s, n in parts)
                return block(*lines)
            if piece in (1, extents[var]):
                return self.scope.line(extents[var], of_line, at, f"k{level}")
            return self.scope.loop(
                extents[var] // piece,
                lambda q: self.scope.loop(piece, lambda v: at(q * index(piece) + v), f"k{level}"),
                "piece",
            )

        return nest(0, index(0), {})

    # -- tiles ---------------------------------------------------------------------------------------------------

    def _tiles(self, task: Task, column, width: int, right, beside: Copied | None = None) -> tirx.Stmt:
        """Return all tiles of a panel, for each part of the depth in turn; a panel that is copied has no parts."""
        plan = self.plan
        if plan.depth_parts == 1:
            return self._tiles_of(task, column, width, right, None, beside)
        kept = scratch([self.task_rows.longest, width], self.reduction.accumulator.ty.dtype, "kept")
        last = (plan.depth_parts - 1) * plan.part_length

        def part(first, length: int, ends: bool = False) -> tirx.Stmt:
            of = Part(first, length, kept, task.row_chunk * index(self.task_rows.length), ends)
            return self._tiles_of(task, column, width, right, of)

        def whole(number) -> tirx.Stmt:
            return part(number * index(plan.part_length), plan.part_length)

        def start(row) -> tirx.Stmt:
            return self._vectors(width, lambda j: store(kept, self.reduction.init, row, j))

        begin = self.over_rows(task.row_chunk, start)
        parts = self.scope.loop(plan.depth_parts - 1, whole, "part"), part(index(last), plan.depth - last, ends=True)
        return allocate([kept], block(begin, *parts))

    def _tiles_of(
        self, task: Task, column, width: int, right, part: Part | None, beside: Copied | None = None
    ) -> tirx.Stmt:
        plan, chunks = self.plan, self.plan.row_tiles
        coming = self._next_panel(task, column, part) if width == plan.tile.width else None
        first, statements, tails = task.row_chunk * index(self.task_rows.length), [], []

        def tiles(row, height: int, done: int) -> Callable:
            def tile(t):
                ask = None if coming is None else coming.of_tile(index(done) + t)
                at = row + t * index(height)
                if plan.rows_asked_for and part is None:
                    ask = self._next_rows(task, at + index(height), height).beside(ask)
                tile = self._tile(task, at, column, height, width, right, ask, part)
                return tile if beside is None else block(tile, self._beside(task, at, column, height, width, beside))

            return tile

        if chunks.last:
            tile = tiles(first, plan.tile.height, 0)
            statements.append(self.scope.loop(of_chunk(task.row_chunk, chunks), tile, "tile", most=chunks.longest))
        done = chunks.last
        for row, count, height in plan.last_tiles:
            tails.append(self.scope.loop(count, tiles(index(row), height, done), "tile"))
            done += count
        return block(*statements, *in_last_chunk(task.row_chunk, plan.row_chunks, tails))

    def _tile(
        self,
        task: Task,
        row,
        column,
        height: int,
        width: int,
        right,
        ask: Ask | None = None,
        part: Part | None = None,
    ) -> tirx.Stmt:
        if self.plan.is_narrow(width):
            return self._narrow_tile(task, row, column, height, width, right)
        acc = Accumulators(self.scope, height, width, self.params.lanes, self.reduction.accumulator.ty.dtype)
        first, length = (index(0), self.plan.depth) if part is None else (part.first, part.length)
        found, total = self._total(task, row, height, right, acc, (first, length, ask))
        whole = self._whole(task, row, column, height, width, acc, total, part)
        return whole if found is None else allocate([found.buffer], block(found.find(), whole))

    def _total(
        self, task: Task, row, height: int, right, acc: Accumulators, steps: tuple
    ) -> tuple[RowPlaces | None, tirx.Stmt]:
        """Return the addresses of a tile's rows or None, and its sums over `steps` (first, number, prefetch)."""
        plan, (first, length, ask) = self.plan, steps
        if not plan.left_in_place:

            def product(k) -> tirx.Stmt:
                return self._add(acc, lambda i: task.left(row + i, k), lambda j: right(k, j))

            return None, self._steps(length, lambda at: product(self.scope.simplify(first + at)), ask)
        contraction = plan.contraction
        places = RowPlaces(
            self.scope, contraction.left, contraction.depth, lambda i: plan.point(task.batch, row + i), height
        )

        def product_at(k, depth: dict) -> tirx.Stmt:
            return self._add(acc, lambda i: places.read(i, depth), lambda j: right(k, j))

        return places, self._walk(first, length, product_at, ask)

    def _add(self, acc: Accumulators, left: Callable, right: Callable) -> tirx.Stmt:
        """Return the statement that adds the products of one step along the depth to the sums of a tile."""
        contraction = self.plan.contraction
        packing = contraction.packing
        if packing and (added := acc.add_dots(left, right, packing, self.params)) is not None:
            return added
        return acc.set(lambda i, j, value: value + contraction.times(left(i), right(j)))

    def _walk(self, first, count: int, add: Callable, ask: Ask | None) -> tirx.Stmt:
        """Return the steps along the depth, one loop for each of its iterators, so that no index is divided."""
        depth, extents, inner = self.plan.contraction.depth, self.reduction.extents, self.plan.depth_unit
        start = self.scope.index(tirx.floordiv(first, index(inner)))

        def nest(level: int, before, point: dict) -> tirx.Stmt:
            """Return the loops from `level` on; `before` counts the iterations of the outer ones that are done."""
            var = depth[level]
            total = extents[var] if level else count // inner

            def place(v) -> tuple:
                return before * index(total) + v, {**point, var: v if level else self.scope.index(start + v)}

            if level < len(depth) - 1:
                return self.scope.loop(total, lambda v: nest(level + 1, *place(v)), f"k{level}")

            def step(v) -> tirx.Stmt:
                done, at = place(v)
                return add(self.scope.simplify(first + done), at)

            return self._steps(total, step, ask, before * index(total // self.plan.unroll))

        return nest(0, index(0), {})

    def _whole(
        self, task: Task, row, column, height: int, width: int, acc: Accumulators, total: tirx.Stmt, part: Part | None
    ) -> tirx.Stmt:
        """Return a tile from the start of its sums to their store."""
        if part is None:
            start = acc.set(lambda i, j, _: self.reduction.init)
        else:
            start = acc.set(lambda i, j, _: part.kept[row - part.first_row + i, j])
            if not part.ends:
                keep = acc.each(lambda i, j, value: store(part.kept, value, row - part.first_row + i, j))
                return acc.allocate(start, total, keep)
        start = block(self._ask_for_results(task, row, column, height, width), start)
        if self._finishes_in_registers:
            finish = acc.each(lambda i, j, value: self._result(value, task, row + i, column + j))
            return acc.allocate(start, total, finish)
        # The sums are spilled first: a loop that indexes the accumulators would keep them in memory all the time.
        done = scratch([height, width], self.reduction.accumulator.ty.dtype, "done")
        spill = acc.each(lambda i, j, value: store(done, value, i, j))
        finish = self.finish(task, row, column, height, width, done)
        return allocate([done], acc.allocate(start, total, spill, finish))

    def _next_rows(self, task: Task, row, height: int) -> NextRows:
        row = self.scope.analyzer.simplify(tirx.min(row, index(self.plan.rows - height)))
        return NextRows(height, self.plan.unroll, lambda i, k: self.scope.simplify(task.left(row + i, k)))

    def _beside(self, task: Task, row, column, height: int, width: int, narrow: Copied) -> tirx.Stmt:
        """Return the product with the columns after the last panel, while the tile's rows are still in the cache."""
        tile = self._narrow_tile(task, row, narrow.column, height, narrow.width, narrow.right)
        last = self.scope.analyzer.simplify(column.equal(index((self.plan.panels - 1) * width)))
        return tile if isinstance(last, tirx.IntImm) else tirx.IfThenElse(last, tile, None)

    def _narrow_tile(self, task: Task, row, column, height: int, width: int, right) -> tirx.Stmt:
        """Return a tile of a narrow panel: each sum is a vector along the depth, whose lanes are added up last."""
        done = scratch([height, width], self.reduction.accumulator.ty.dtype, "done")
        sums = [
            self.scope.loop(
                count,
                lambda t, f=first, h=high: self._add_up(task, row, index(f) + t * index(h), h, width, right, done),
                "part",
            )
            for first, count, high in row_tiles(height, narrow_rows(width, self.params))
        ]
        ask = self._ask_for_results(task, row, column, height, width)
        return allocate([done], block(ask, *sums, self.finish(task, row, column, height, width, done)))

    def _add_up(self, task: Task, row, first, height: int, width: int, right, done) -> tirx.Stmt:
        """Return the statements that write `height` rows of sums, from row `first` of the tile on, into `done`."""
        steps, dtype, across = self.plan.steps, done.dtype, index(width)
        acc = Accumulators(self.scope, height * width, steps, steps, dtype)
        lanes = scratch([height, width, steps], dtype, "lanes")

        def add(q):
            def product(i, j, value):
                k = q * index(steps) + j
                left = task.left(row + first + i // across, k)
                return value + self.plan.contraction.times(left, right(k, i % across))

            return acc.set(product)

        def total(i, j):
            def fold(half: int) -> tirx.Stmt:
                return self.scope.loop(
                    half, lambda v: store(lanes, lanes[i, j, v] + lanes[i, j, v + half], i, j, v), "v", VECTOR
                )

            halves = (steps >> n for n in range(1, steps.bit_length()))
            return block(*map(fold, halves), store(done, self.reduction.init + lanes[i, j, 0], first + i, j))

        start = acc.set(lambda i, j, _: tirx.const(0, dtype))
        spill = acc.each(lambda i, j, value: store(lanes, value, i // across, i % across, j))
        sums = self.scope.loop(
            height, lambda i: self.scope.loop(width, lambda j: total(i, j), "j", UNROLL), "i", UNROLL
        )
        multiply = self.scope.loop(self.plan.depth // steps, add, "k")
        return allocate([lanes], block(acc.allocate(start, multiply, spill), sums))

    def _steps(self, count: int, add: Callable, ask: Ask | None, before=0) -> tirx.Stmt:
        return in_pieces(self.scope, count, self.plan.unroll, add, ask, before)

    # -- results -------------------------------------------------------------------------------------------------

    @property
    def _finishes_in_registers(self) -> bool:
        finish = self.reduction.finish
        return size(finish) <= _SMALL_FINISH and not branches(finish) and not self.plan.stores_down

    def _ask_for_results(self, task: Task, row, column, height: int, width: int) -> tirx.Stmt | None:
        """Return the prefetch of the cache lines that a tile stores, if it stores contiguous runs."""
        plan, reduction = self.plan, self.reduction
        if plan.output_run(False, self.params.lanes) == 1 or branches(reduction.finish):
            return None

        def at(load, i: int, j):
            return self.scope.simplify(substitute(load, plan.point(task.batch, row + index(i), column + j)))

        return ask_for_results(reduction, plan.contraction.rows, at, height, width)

    def _result(self, value, task: Task, row, column) -> tirx.Stmt:
        return self.reduction.store(value, self.plan.point(task.batch, row, column))

    def finish(self, task: Task, row, column, height: int, width: int, sums) -> tirx.Stmt:
        """Return the stores of a tile in the direction in which the result is contiguous."""

        def at(i, j) -> tirx.Stmt:
            return self.scope.simplify(self._result(sums[i, j], task, row + i, column + j))

        if self.plan.stores_down:
            vector = height in (4, 8) and not branches(self.reduction.finish)
            kind = VECTOR if vector else SERIAL
            return self.scope.loop(width, lambda j: self.scope.loop(height, lambda i: at(i, j), "i", kind), "j")
        if branches(self.reduction.finish):
            return self.scope.loop(height, lambda i: self.scope.loop(width, lambda j: at(i, j), "j"), "i")
        return self.scope.loop(height, lambda i: self._vectors(width, lambda j: at(i, j)), "i")

    def _vectors(self, width: int, body) -> tirx.Stmt:
        return self.scope.vectors(width, self.params.lanes, body)
