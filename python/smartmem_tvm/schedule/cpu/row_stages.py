# SPDX-License-Identifier: Apache-2.0
"""The stages of a chain of rows on a block of rows: the buffers of values, and the stages that are no products."""

from __future__ import annotations

from tvm import ir, tirx

from ...analysis.ending_keys import along
from ...analysis.row_chain import RowChain
from ...ir.blends import branches
from ...ir.kernel import Stage, substitute
from ...ir.walk import loads
from ..core.expressions import replace_loads, split_index
from ..core.nest import VECTOR, Scope, allocate, block, index, scratch, store
from ..core.positions import Inside, ending_keys, guarded, inside
from ..core.reduction import combiner_of, last_part
from .gemm.epilogue import fits_registers
from .params import CpuParams


class EndingKeys:
    """The stages of a chain that may end at the length, along the positions that its last sum adds up.

    They end at a whole vector, but for the depth of a product: what a vector computes behind the length is hidden.
    """

    def __init__(self, keys: dict, end, lanes: int):
        self._keys, self._lanes = keys, lanes
        self.end = end
        self.whole = tirx.floordiv(end + index(lanes - 1), index(lanes)) * index(lanes)

    @classmethod
    def of(cls, chain: RowChain, params: CpuParams) -> EndingKeys | None:
        """Return the keys of a chain; None if it has none, or they are not whole vectors in a row."""
        found = ending_keys()
        if found is None:
            return None
        number, end = found
        keys = along(chain.kernel, chain.axes, number)
        for stage, key in keys.items():
            mine = stage.reduction if any(key.same_as(each) for each in stage.reduction) else chain.inner(stage)
            if len(mine) != 1 or not mine[0].same_as(key) or stage.extents[key] % params.lanes:
                return None
        return cls(keys, end, params.lanes)

    def runs(self, stage: Stage) -> bool:
        """Whether a stage runs along the keys."""
        return stage in self._keys

    def single(self, stage: Stage, width: int):
        """Return how many values of a row a stage computes one by one."""
        return self.whole if self.runs(stage) else width

    def vectors(self, stage: Stage, count: int):
        """Return how many vectors of a row a stage computes."""
        return tirx.floordiv(self.whole, index(self._lanes)) if self.runs(stage) else count

    def end_of(self, stage: Stage):
        """Return where a reduction ends; None if it runs along something else."""
        return self.whole if self.runs(stage) else None

    def columns(self, stage: Stage) -> Inside | None:
        """Return which columns of a product are computed; None for all."""
        return Inside(lambda column: column, self.end) if self.runs(stage) and not self._adds(stage) else None

    def depth(self, stage: Stage):
        """Return how many steps a product adds up; None for all."""
        return self.end if self.runs(stage) and self._adds(stage) else None

    def _adds(self, stage: Stage) -> bool:
        return any(self._keys[stage].same_as(each) for each in stage.reduction)


class RowStages:
    """Values of a block of `rows` rows of one batch.

    Parameters
    ----------
    place : dict
        Value of each batch axis.
    """

    def __init__(self, chain: RowChain, params: CpuParams, scope: Scope, rows: int, place: dict):
        self.chain, self.params, self.scope, self.rows, self.place = chain, params, scope, rows, place
        self.first = index(0)
        self.keys = EndingKeys.of(chain, params)
        self._locals: dict = {}
        self._producer = {s.body.buffer: s for s in chain.kernel.stages}
        for stage in chain.kernel.stages[:-1]:
            reused = self._in_place_of(stage)
            self._locals[stage.body.buffer] = self._scratch(stage) if reused is None else reused

    def at_rows(self, first) -> RowStages:
        """Move to the block that begins at row `first`, and return self."""
        self.first = first
        return self

    @property
    def buffers(self) -> list:
        """The scratch buffers to allocate."""
        found: list = []
        for buffer in self._locals.values():
            if not any(buffer.same_as(f) for f in found):
                found.append(buffer)
        return found

    def _scratch(self, stage: Stage):
        width, lanes = self.chain.width(stage), self.params.lanes
        shape = [self.rows, -(-width // lanes) * lanes if width > 1 else 1]
        return scratch(shape, stage.body.buffer.ty.dtype, f"{stage.body.buffer.name}_rows")

    def _in_place_of(self, stage: Stage):
        """Return the buffer of a value that an element-wise `stage` reads last, and can overwrite; else None."""
        for load in stage.loads if not stage.reduction else ():
            old = self._locals.get(load.source)
            if old is None or load.source.ty.dtype != stage.body.buffer.ty.dtype:
                continue
            stages = self.chain.kernel.stages
            later = stages[stages.index(stage) + 1 :]
            needed = any(self._local_of(ld) is old for s in later for ld in s.loads)
            if not needed and self._order(self._producer[load.source]) == self._order(stage):
                return old
        return None

    def _local_of(self, load):
        return self._locals.get(load.source)

    def _order(self, stage: Stage) -> list[int]:
        """Return the axes of a stage's values in a row, in the order in which they are flattened."""
        return [self.chain.axes[stage][v] for v in self.chain.inner(stage)]

    @property
    def inside(self) -> Inside | None:
        """Return which rows of the block are before the length; None if the kernel has no length."""
        last = self.chain.kernel.stages[-1]

        def stored(row) -> tirx.BufferStore:
            point = self.point(last, row, index(0))
            return tirx.BufferStore(
                last.body.buffer, last.body.value, [substitute(each, point) for each in last.body.indices]
            )

        return inside(stored, self.rows, self.scope.analyzer)

    # -- values --------------------------------------------------------------------------------------------------

    def point(self, stage: Stage, row=None, column=None, depth=None) -> dict:
        """Return iterator values at a row, and at fused inner and depth indices; None leaves a group out."""
        axes, extents = self.chain.axes[stage], self.chain.extents
        where = dict(self.place)
        if row is not None:
            where.update(split_index(self.first + row, self.chain.rows, extents))
        point = {v: where[a] for v, a in axes.items() if a in where}
        if column is not None:
            point.update(split_index(column, self.chain.inner(stage), stage.extents))
        if depth is not None:
            point.update(split_index(depth, stage.reduction, stage.extents))
        return point

    def value(self, expr, row, point: dict):
        """Return `expr` at `point`, with intermediate results read from the block."""
        return self._local(substitute(expr, point), row)

    def _local(self, expr, row):
        def read(load):
            local = self._local_of(load)
            return None if local is None else local[row, self._flat(load.source, load.indices)]

        return replace_loads(expr, read)

    def _flat(self, buffer, indices):
        """Return the position in a row of an element of an intermediate buffer."""
        producer, flat = self._producer[buffer], index(0)
        at = {made: read for made, read in zip(producer.body.indices, indices, strict=True) if isinstance(made, ir.Var)}
        for var in self.chain.inner(producer):
            flat = flat * index(producer.extents[var]) + at[var]
        return self.scope.analyzer.simplify(flat)

    def write(self, stage: Stage, value, row, column, point: dict) -> tirx.Stmt:
        """Return the store of an element of a stage's result, in the block or in the output."""
        target = self._locals.get(stage.body.buffer)
        if target is None:
            indices = [substitute(i, point) for i in stage.body.indices]
            return self.scope.simplify(tirx.BufferStore(stage.body.buffer, value, indices))
        return self.scope.simplify(store(target, value, row, column))

    def is_kept(self, stage: Stage) -> bool:
        """Whether the result of a stage stays in the block."""
        return stage.body.buffer in self._locals

    def is_local(self, load) -> bool:
        """Whether a load reads an intermediate result."""
        return load.source in self._locals

    # -- element-wise work on a product ----------------------------------------------------------------------------

    def finish_of(self, stage: Stage) -> Stage | None:
        """Return the element-wise stage after a product that can be computed on its registers, else None."""
        stages = self.chain.kernel.stages
        position = stages.index(stage) + 1
        if position == len(stages):
            return None
        finish = stages[position]
        readers = [s for s in stages if any(ld.source.same_as(stage.body.buffer) for ld in s.loads)]
        if finish.reduction or readers != [finish] or self._order(stage) != self._order(finish):
            return None
        return finish if fits_registers(finish.body.value) else None

    def store_product(self, stage: Stage, finish: Stage | None, value, row, column) -> tirx.Stmt:
        """Return the store of element (row, column) of a product, with the epilogue `finish` if given."""
        if finish is None:
            return self.write(stage, value, row, column, self.point(stage, row, column))
        point = self.point(finish, row, column)
        done = replace_loads(
            substitute(finish.body.value, point),
            lambda load: value if load.source.same_as(stage.body.buffer) else None,
        )
        return self.write(finish, self._local(done, row), row, column, point)

    # -- stages row by row ---------------------------------------------------------------------------------------

    def row_by_row(self, stages: list[Stage]) -> list[tirx.Stmt]:
        """Return all of `stages` on a row, then on the next; no statement if there are none."""
        if not stages:
            return []

        before = self.inside

        def one(row):
            statements = (self._reduce(s, row) if s.reduction else self._map(s, row) for s in stages)
            return guarded(before, row, 1, block(*statements))

        return [self.scope.loop(self.rows, one, "row")]

    def _map(self, stage: Stage, row) -> tirx.Stmt:
        """Return an element-wise stage on a row; it may also compute the padding of the row up to a whole vector."""
        width, lanes = self.chain.width(stage), self.params.lanes

        def at(column):
            point = self.point(stage, row, column)
            return self.write(stage, self.value(stage.body.value, row, point), row, column, point)

        if branches(stage.body.value) or width < lanes:
            steps = width if self.keys is None else self.keys.single(stage, width)
            return self.scope.loop(steps, at, "c", most=width)
        padded = self.is_kept(stage) and all(self._pads(load, width) for load in loads(stage.body.value))
        whole = -(-width // lanes) * lanes if padded else width // lanes * lanes
        count = whole // lanes
        steps = count if self.keys is None else self.keys.vectors(stage, count)
        main = self.scope.loop(steps, lambda v: self.vector(lambda j: at(v * index(lanes) + j)), "v", most=count)
        if whole >= width:
            return main
        if self.is_kept(stage):  # It may overwrite its input, so no element is computed twice.
            return block(main, self.scope.loop(width - whole, lambda j: at(index(whole) + j), "c"))
        return block(main, self.vector(lambda j: at(index(width - lanes) + j)))

    def _pads(self, load, width: int) -> bool:
        """Whether a load may read beyond the end of a row of `width` values."""
        stage = self._producer.get(load.source)
        return self._local_of(load) is not None and self.chain.width(stage) in (1, width)

    def _reduce(self, stage: Stage, row) -> tirx.Stmt:
        """Return a reduction stage on a row, such as its maximum, for each of the stage's columns."""
        return self.scope.loop(self.chain.width(stage), lambda c: self._statistic(stage, row, c), "c")

    def _statistic(self, stage: Stage, row, column) -> tirx.Stmt:
        combine, term = combiner_of(stage)
        length, lanes = 1, self.params.lanes
        for var in stage.reduction:
            length *= stage.extents[var]
        vectors = 1 if branches(term) else min(self.params.row_vectors, length // lanes)
        width = max(1, vectors) * lanes if length >= lanes and not branches(term) else 1
        acc = scratch([width], stage.body.buffer.ty.dtype, "acc")

        def part(at):
            return self.value(term, row, self.point(stage, row, column, at))

        def add(first, many: int) -> tirx.Stmt:
            return self.vectors(many, lambda j: store(acc, combine(acc[j], part(first + j)), j))

        def last(few: int) -> tirx.Stmt:
            def one(j):
                term = part(index(length - lanes) + j)
                return store(acc, combine(acc[j], last_part(stage, term, j, lanes - few)), j)

            return self.vectors(lanes, one)

        def loop(begin, step: int) -> tuple[tirx.Stmt | None, object]:
            count = (length - begin) // step if ends is None else tirx.floordiv(ends - begin, index(step))
            first = index(begin) if isinstance(begin, int) else begin
            if isinstance(count, int) and not count:
                return None, begin
            body = self.scope.loop(
                count, lambda b: add(first + b * index(step), step), "b", most=max(1, length // step)
            )
            return body, begin + count * (step if ends is None else index(step))

        ends = None if self.keys is None else self.keys.end_of(stage)
        start = self.vectors(width, lambda j: store(acc, stage.init.value, j))
        statements, done = [], 0 if ends is None else index(0)
        for step in sorted({width, min(width, lanes)}, reverse=True):
            body, done = loop(done, step)
            statements.append(body)
        if ends is None and done < length:
            statements.append(last(length - done))
        statements += self._fold(acc, width, combine)
        point = self.point(stage, row, column)
        result = self.write(stage, acc[0], row, column, point)
        return allocate([acc], block(start, *statements, result))

    def _fold(self, acc, width: int, combine) -> list[tirx.Stmt]:
        """Return the statements that combine the partial results in `acc` into its first element."""
        folds = []
        lanes = min(width, self.params.lanes)
        for extra in range(1, width // lanes):
            folds.append(self.vectors(lanes, lambda j, e=extra: store(acc, combine(acc[j], acc[j + e * lanes]), j)))
        half = lanes // 2
        while half:
            folds.append(self.vectors(half, lambda j, h=half: store(acc, combine(acc[j], acc[j + h]), j)))
            half //= 2
        return folds

    def vector(self, body) -> tirx.Stmt:
        """Return `body` as one vector."""
        return self.scope.loop(self.params.lanes, body, "j", VECTOR)

    def vectors(self, width: int, body) -> tirx.Stmt:
        """Return `body` for `width` elements, as whole vectors and a short one for the rest."""
        return self.scope.vectors(width, self.params.lanes, body)
