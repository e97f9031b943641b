# SPDX-License-Identifier: Apache-2.0
"""Row-wise kernels on a CPU (softmax, layer norm, mean, matrix times vector): all stages of a row while it is cached.

    parallel for chunks of rows:
      for row: mean = sum(x[row, :]) / n; var = ...; out[row, :] = ...

The values between stages are in row-sized buffers. A row that is contiguous in memory is reduced into several partial
vectors; where adjacent elements belong to adjacent rows instead (channel norm of an NCHW tensor), the lanes are rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tvm import tirx

from ...ir.blends import branches
from ...ir.codes import codes_of
from ...ir.kernel import Kernel, Stage, substitute
from ...ir.walk import loads
from ..core.concatenation_pieces import pieces
from ..core.contraction import contraction_of
from ..core.decisions import decide, declined
from ..core.expressions import (
    Walk,
    accesses_of,
    fusable_suffix,
    lie_side_by_side,
    piece_length,
    replace_loads,
    split_index,
)
from ..core.nest import SERIAL, VECTOR, Scope, allocate, block, fresh, index, power_of_two, scratch, store
from ..core.positions import before_length
from ..core.reduction import combiner_of, last_part, reduction_of
from ..core.row_space import RowSpace, row_space_of
from .params import CpuParams
from .row_gather import gather_rows
from .rule import CpuRule
from .tile import column_tiles

# Elements of a row, from which on it is added up as vectors, and then their lanes. Chosen: from 32 on was
# slower with AVX-512, as measured in docs/cpu.md (Choices and short lines, 2026-11-27).
_LEAST_SUMS = 8


@dataclass(frozen=True)
class RowsChoice:
    """The choices for rows.

    Attributes
    ----------
    vectors : int
        Partial sums of a reduction along a row, in vectors.
    together : int
        Rows that are computed together where the lanes are rows.
    tasks : int
        Wanted number of tasks; a single one runs on the calling thread.
    """

    vectors: int
    together: int
    tasks: int


class Rows(CpuRule):
    """The rule for kernels whose stages share their outer iterators and reduce within a row."""

    def plan(self, kernel: Kernel, params: CpuParams) -> list[_RowsNest] | None:
        """Return an emitter for the rows of each piece, or None if the kernel's stages do not share a row."""
        space = row_space_of(kernel)
        if space is None:
            return declined("its stages share no outer iterators")
        if not any(stage.reduction for stage in space.kernel.stages):
            return declined("no stage reduces")
        if _holds_matmuls(kernel):
            return declined("a matmul is one of several reductions: tiles of its own make up for storing its result")
        spaces = [row_space_of(piece) for piece in pieces(space.kernel)]
        return [_RowsNest(gather_rows(each), params) for each in spaces]

    def emit(self, plan: list[_RowsNest]) -> tirx.Stmt:
        """Return one nest after the other."""
        return block(*(each.kernel() for each in plan))


def _holds_matmuls(kernel: Kernel) -> bool:
    """Whether a matmul is one of several reductions: its own register tiles are worth storing its result."""
    reductions = [stage for stage in kernel.stages if stage.reduction]
    return len(reductions) > 1 and any(_is_matmul(kernel, stage) for stage in reductions)


def _is_matmul(kernel: Kernel, stage: Stage) -> bool:
    reduction = reduction_of(Kernel(kernel.inputs, stage.outputs, (stage,)))
    contraction = contraction_of(reduction, pairs=True) if reduction is not None else None
    if contraction is None:
        return False
    coded = any(codes_of(side) is not None for side in (contraction.left, contraction.right))
    return coded or min(map(contraction.extent, (contraction.rows, contraction.columns))) > 1


@dataclass(eq=False)
class _RowsNest:
    space: RowSpace
    params: CpuParams

    def __post_init__(self):
        self.scope = Scope()
        self.lane = self._lane_row()
        self.width = 1
        self.choice = self._choice()

    def _choice(self) -> RowsChoice:
        p, space = self.params, self.space
        beside = space.extents[self.lane] if self.lane is not None else 1
        tasks = p.tasks if space.work >= p.serial_below else 1
        choice = RowsChoice(p.row_vectors, min(beside, 2 * p.lanes), tasks)
        return decide("rows", choice, rows=prod(space.extents), beside=beside, work=space.work, **p.facts)

    def _lane_row(self) -> int | None:
        """Return the row iterator along which the reduced data is contiguous, None if it is along a reduction iterator.

        A tensor that all rows read alike, such as weights of channels, does not count: it is one number for all lanes.
        """
        lane = self._lane_of_result()
        for stage in self.space.kernel.stages if lane is None else ():
            walk, rows = Walk(stage.extents), self.space.rows_of(stage)
            for load in loads(stage.body) if stage.reduction else ():
                strides = {v: walk.stride(load.source, load.indices, v) for v in stage.extents}
                if all(strides.get(var) == 0 for var in rows):
                    continue
                if any(strides[v] == 1 and stage.extents[v] > 1 for v in stage.reduction):
                    return None
                for row, var in enumerate(rows):
                    if strides.get(var) == 1:
                        lane = row
        return lane

    def _lane_of_result(self) -> int | None:
        """Return the row iterator along which a result with several elements per row is contiguous, else None.

        An example are channels that are scaled.
        """
        stage = self.space.kernel.stages[-1]
        rows, inner = self.space.rows_of(stage), [v for v in self.space.inner(stage) if stage.extents[v] > 1]
        if stage.reduction or not inner or not isinstance(stage.body, tirx.BufferStore):
            return None
        walk = Walk(stage.extents)
        steps = {v: walk.stride(stage.body.buffer, stage.body.indices, v) for v in stage.extents}
        if any(steps[v] == 1 for v in inner):
            return None
        return next((n for n, v in enumerate(rows) if steps[v] == 1 and stage.extents[v] >= self.params.lanes), None)

    # -- rows ----------------------------------------------------------------------------------------------------

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        extents = list(self.space.extents)
        if self.lane is None:
            return self._over_rows(extents, lambda rows: self._row(rows, 1))
        length = extents[self.lane]
        width = self.choice.together
        outer = [e if r != self.lane else length // width for r, e in enumerate(extents)]

        def body(rows, width=width, start=0):
            at = rows[self.lane] * width + start
            return self._row([at if r == self.lane else v for r, v in enumerate(rows)], width)

        nests, start = [self._over_rows(outer, body)], length // width * width
        for tail in column_tiles(length - start, self.params):
            rest = [e if r != self.lane else 1 for r, e in enumerate(extents)]
            nests.append(self._over_rows(rest, lambda rows, s=start, t=tail: body(rows, t, s)))
            start += tail
        return block(*nests)

    def _over_rows(self, extents: list[int], body) -> tirx.Stmt:
        total, keys = 1, [fresh(f"row{n}") for n in range(len(extents))]
        for extent in extents:
            total *= extent
        sizes = dict(zip(keys, extents, strict=True))
        self.buffers: dict = {}

        def one(number):
            place = split_index(number, keys, sizes)
            return body([self.scope.analyzer.simplify(place[k]) for k in keys])

        def with_buffers(nest):
            return allocate(list(self.buffers.values()), nest)

        return self.scope.tasks(total, self.choice.tasks, one, "row", with_buffers)

    def _row(self, rows: list, width: int) -> tirx.Stmt:
        self.width = width
        nest = block(*(self._stage(stage, rows) for stage in self.space.kernel.stages))
        last = self.space.kernel.stages[-1]
        return before_length(self._first_store(last, rows), nest)

    def _first_store(self, stage: Stage, rows: list, point: dict | None = None) -> tirx.BufferStore:
        place = self._place(stage, rows, index(0)) | (point or {})
        place |= {var: index(0) for var in stage.spatial if var not in place}
        where = [self.scope.simplify(substitute(each, place)) for each in stage.body.indices]
        return tirx.BufferStore(stage.body.buffer, stage.body.value, where)

    # -- stages --------------------------------------------------------------------------------------------------

    def _place(self, stage: Stage, rows: list, lane) -> dict:
        values = [v + lane if n == self.lane else v for n, v in enumerate(rows)]
        return dict(zip(self.space.rows_of(stage), values, strict=True))

    def _stage(self, stage: Stage, rows: list) -> tirx.Stmt:
        inner = list(self.space.inner(stage))

        def element(point: dict):
            if not stage.reduction:
                return self._lanes(lambda lane: self._write(stage, stage.body, point, rows, lane), stage)
            return self._reduction(stage, point, rows)

        if not inner:
            return element({})
        extents = {v: stage.extents[v] for v in inner}
        if stage.reduction or self.lane is not None:
            fused = 1
        else:
            fused = fusable_suffix(inner, stage.extents, accesses_of(stage))
        run = 1 if stage.reduction else piece_length(stage.body, inner[-1], stage.extents)
        alone = fused == 1 and not stage.reduction and self.lane is None
        lanes = self.params.lanes if alone and lie_side_by_side(stage, inner[-1]) else 1

        def wanted(point: dict, body: tirx.Stmt) -> tirx.Stmt:
            return before_length(self._first_store(stage, rows, point), body, self._first_store(stage, rows))

        ends = None if stage.reduction or stage is not self.space.kernel.stages[-1] else wanted
        return self._nest(inner, extents, fused, element, run, lanes, not self._rewrites(stage), ends)

    def _rewrites(self, stage: Stage) -> bool:
        """Whether the row-sized copy of a stage's result may lie in the memory of one that the stage reads."""
        kept = self.space.inner_axes
        return kept(stage.body.buffer) is not None and any(kept(load.source) is not None for load in loads(stage.body))

    def _nest(
        self,
        vars_: list,
        extents: dict,
        fused: int,
        body,
        run: int = 1,
        lanes: int = 1,
        recomputes: bool = True,
        ends: Callable | None = None,
    ) -> tirx.Stmt:
        """Return loops over `vars_`, the last `fused` of them as one loop, in vectors of `lanes`.

        Parameters
        ----------
        ends : callable, optional
            (point of the other loops, last loop) -> the last loop, if its first result is before the length.
        """
        outer, suffix = vars_[: len(vars_) - fused], vars_[len(vars_) - fused :]
        length = 1
        for var in suffix:
            length *= extents[var]

        def inner(point: dict) -> tirx.Stmt:
            def at(v):
                return body({**point, **split_index(v, suffix, extents)})

            if run not in (1, length):
                line = self.scope.loop(
                    length // run, lambda q: self.scope.loop(run, lambda v: at(q * index(run) + v), "c"), "run"
                )
            else:
                line = self.scope.line(length, lanes, at, recomputes=recomputes)
            return line if ends is None else ends(point, line)

        return self.scope.nest(outer, extents, inner, "c")

    def _lanes(self, body, stage: Stage) -> tirx.Stmt:
        """Return `body` for each row that is computed together, in vectors where the code allows."""
        if self.lane is None:
            return body(index(0))
        vector = not branches(stage.body) and self.width in [n * self.params.lanes for n in (1, 2, 4)]
        return self.scope.loop(self.width, body, "lane", VECTOR if vector else SERIAL)

    def _write(self, stage: Stage, body, point: dict, rows: list, lane) -> tirx.Stmt:
        """Return `body` (a store) at a point, with the buffers between stages replaced by row-sized ones."""
        place = {**self._place(stage, rows, lane), **point}
        return self.scope.simplify(self._local(substitute(body, place), lane))

    def _local(self, body, lane) -> tirx.Stmt:
        value = replace_loads(body.value, lambda ld: self._at(ld.source, ld.indices, lane))
        target = self._local_buffer(body.buffer)
        if target is None:
            return tirx.BufferStore(body.buffer, value, list(body.indices))
        return tirx.BufferStore(target, value, self._inner_indices(body.buffer, body.indices, lane))

    def _at(self, buffer, indices, lane):
        local = self._local_buffer(buffer)
        return None if local is None else local[tuple(self._inner_indices(buffer, indices, lane))]

    def _local_buffer(self, buffer):
        inner = self.space.inner_axes(buffer)
        if inner is None:
            return None
        if buffer not in self.buffers:
            shape = [int(buffer.shape[a]) for a in inner] + ([self.width] if self.lane is not None else [])
            self.buffers[buffer] = scratch(shape or [1], buffer.ty.dtype, f"{buffer.name}_row")
        return self.buffers[buffer]

    def _inner_indices(self, buffer, indices, lane) -> list:
        kept = [indices[a] for a in self.space.inner_axes(buffer)]
        return [*kept, lane] if self.lane is not None else kept or [index(0)]

    # -- reductions ----------------------------------------------------------------------------------------------

    def _reduction(self, stage: Stage, point: dict, rows: list) -> tirx.Stmt:
        parts = combiner_of(stage)
        vars_ = [v for v in stage.reduction if stage.extents[v] > 1]
        point = {**point, **{v: index(0) for v in stage.reduction if stage.extents[v] == 1}}
        extents = {v: stage.extents[v] for v in vars_}
        fused = 1
        if self.lane is None and vars_:
            fused = fusable_suffix(vars_, stage.extents, [a for a in accesses_of(stage) if a[0] not in stage.outputs])
            partial = self._partial_sums(stage, parts, point, rows, vars_, extents, fused)
            if partial is not None:
                return partial
        start = self._lanes(lambda lane: self._write(stage, stage.init, point, rows, lane), stage)
        if not vars_:
            return block(start, self._lanes(lambda lane: self._write(stage, stage.body, point, rows, lane), stage))
        total = self._nest(
            vars_,
            extents,
            fused,
            lambda at: self._lanes(lambda lane: self._write(stage, stage.body, {**point, **at}, rows, lane), stage),
        )
        return block(start, total)

    def _partial_sums(self, stage, parts, point, rows, vars_, extents, fused) -> tirx.Stmt | None:
        """Return a reduction of a contiguous row into partial vectors, and of these; None if the row is too short."""
        suffix = vars_[len(vars_) - fused :]
        length = prod(extents[var] for var in suffix)
        if parts is None or length < _LEAST_SUMS or branches(stage.body):
            return None
        lanes = power_of_two(self.params.lanes, length)
        combine, term = parts
        vectors = self.choice.vectors
        while vectors > 1 and length < 2 * vectors * lanes:
            vectors //= 2
        width, body = vectors * lanes, stage.body
        acc = scratch([width], body.buffer.ty.dtype, "acc")

        def value(at, column):
            whole = {**self._place(stage, rows, index(0)), **point, **at, **split_index(column, suffix, extents)}
            return self._values(substitute(term, whole))

        def add(at, first, many):
            return self._vector_loop(many, lambda j: store(acc, combine(acc[j], value(at, first + j)), j))

        def one(at):
            steps, rest = divmod(length, width)
            main = self.scope.loop(steps, lambda b: add(at, b * width, width), "b")
            whole, few = rest // lanes * lanes, rest % lanes
            more = add(at, index(length - rest), whole) if whole else None
            return block(main, more, self._vector_loop(lanes, lambda j: last(at, j, few)) if few else None)

        def last(at, j, few):
            term = value(at, index(length - lanes) + j)
            return store(acc, combine(acc[j], last_part(stage, term, j, lanes - few)), j)

        outer = {v: extents[v] for v in vars_[: len(vars_) - fused]}
        init = self._vector_loop(width, lambda j: store(acc, stage.init.value, j))
        folds, left = [], width
        while left > 1:
            half = -(-left // 2)
            folds.append(self._vector_loop(left - half, lambda j, h=half: store(acc, combine(acc[j], acc[j + h]), j)))
            left = half
        result = tirx.BufferStore(body.buffer, acc[0], list(body.indices))
        final = self._write(stage, result, point, rows, index(0))
        return allocate([acc], block(init, self._outer(outer, one), *folds, final))

    def _values(self, expr):
        return replace_loads(expr, lambda ld: self._at(ld.source, ld.indices, index(0)))

    def _outer(self, extents: dict, body) -> tirx.Stmt:
        return self._nest(list(extents), extents, 0, body) if extents else body({})

    def _vector_loop(self, width: int, body) -> tirx.Stmt:
        return self.scope.vectors(width, self.params.lanes, body)
