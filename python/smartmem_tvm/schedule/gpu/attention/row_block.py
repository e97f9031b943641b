# SPDX-License-Identifier: Apache-2.0
"""A block of rows of a chain on chip: its buffers, and the row-wise work of a thread block between products.

values of the row into registers, once        a thread has every n-th of them
partial[thread] = combine(own values)         shared memory
statistic = combine(partials of the row)      in every thread of the row
left operand of the next product              back into shared memory, zeros behind the end of the row
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from ....ir.kernel import Stage
from ....ir.texels import is_texture
from ....planner.texture_form import TEXEL
from ....target import Limits
from ...core.expressions import replace_loads
from ...core.nest import UNROLL, VECTOR, Scope, block, index, store
from ...core.reduction import combiner_of
from ..launch import registers, shared, when
from .chain_plan import ChainPlan
from .chain_tile import ChainTile, kept_pitch

_LIMITS = Limits()


def fit(value, buffer):
    """Cast a value to the type of a buffer: rows on chip have the type that the products multiply."""
    dtype = str(buffer.dtype)
    return value if str(value.ty.dtype) == dtype else value.astype(dtype)


class RowBlock:
    """The rows of one thread block.

    Parameters
    ----------
    thread : expression
        Number of the current thread.
    batch, first : expression
        Batch and first row of the thread block.
    limits : Limits, optional
        Those of the target.
    """

    def __init__(self, plan: ChainPlan, tile: ChainTile, scope: Scope, thread, batch, first, limits: Limits = _LIMITS):
        self.plan, self.tile, self.scope, self.limits = plan, tile, scope, limits
        self.thread, self.batch, self.first = thread, batch, first
        self.buffers: list = []
        self.pitches = [kept_pitch(vector, tile) for vector in plan.slots]
        slots = [self.share(tile.rows * pitch, f"kept{n}") for n, pitch in enumerate(self.pitches)]
        self._vectors = {s.body.buffer: (slots[n], self.pitches[n]) for s, n in plan.slot_of.items()}
        self._scalars: dict = {}  # result of a stage -> its values on chip
        self._own: dict = {}  # result of a stage -> registers of this thread
        self._run = 1  # contiguous columns of a thread
        threads = index(tile.row_threads)
        self._local = self.simple(tirx.floordiv(thread, threads))
        self._slice = self.simple(tirx.floormod(thread, threads))

    def simple(self, expr):
        """Simplify under the ranges of the loops built so far."""
        return self.scope.analyzer.simplify(expr)

    def share(self, count: int, name: str, dtype: str | None = None):
        """Declare a buffer in shared memory, by default of the type that the products multiply."""
        return self._added(shared(count, dtype or self.plan.dtype, name))

    def own(self, count: int, name: str, dtype: str | None = None):
        """Declare registers of each thread, by default of the type that the products multiply."""
        return self._added(registers(count, dtype or self.plan.dtype, name))

    def _added(self, buffer):
        self.buffers.append(buffer)
        return buffer

    # -- values ------------------------------------------------------------------------------------------------------

    def row(self, local):
        """Return the number of the row at `local` of the block; the last row past the end."""
        row, rows = self.simple(self.first + local), self.plan.chain.row_count
        return row if rows % self.tile.rows == 0 else tirx.min(row, index(rows - 1))

    def exists(self, local):
        """Return the condition that there is a row at `local`; None if there always is."""
        rows = self.plan.chain.row_count
        return None if rows % self.tile.rows == 0 else self.simple(self.first + local) < index(rows)

    def value(self, stage: Stage, expr, local, given: Mapping, **indices):
        """Return `expr` of a stage at a row of the block; intermediate results come from `given` or shared memory."""
        here = self.plan.at(stage, expr, batch=self.batch, row=self.row(local), **indices)
        (flat,) = indices.values() or (index(0),)

        def read(load):
            if load.source in given:
                return given[load.source]
            if load.source in self._scalars:
                return self._scalars[load.source][local]
            if load.source in self._vectors:
                buffer, pitch = self._vectors[load.source]
                return fit(buffer[local * index(pitch) + flat], load.source)
            return None

        return replace_loads(here, read)

    def vector(self, stage: Stage) -> tuple:
        """Return (buffer, distance between its rows in elements) of a result that stays on chip."""
        return self._vectors[stage.body.buffer]

    def leave(self, stage: Stage, value, local, column) -> tirx.Stmt:
        """Store a result of the kernel; the row exists."""
        point = {"batch": self.batch, "row": self.simple(self.first + local), "column": column}
        indices = [self.plan.at(stage, i, **point) for i in stage.body.indices]
        return tirx.BufferStore(stage.body.buffer, value, indices)

    # -- row by row --------------------------------------------------------------------------------------------------

    def work(self, stages: tuple[Stage, ...]) -> tirx.Stmt | None:
        """Return the element-wise work and statistics of a part."""
        if not stages:
            return None
        self._own = {}
        self._run = TEXEL if any(self.plan.leaves(s) and is_texture(s.body.buffer) for s in stages) else 1
        return block(*self._fetch(stages), *(self._stage(stage) for stage in stages))

    def _fetch(self, stages: tuple[Stage, ...]) -> list[tirx.Stmt]:
        """Load the rows that the stages read from shared memory into registers, once: stages may overwrite the slot."""
        fetched = []
        for load in (load for stage in stages for load in stage.loads):
            if load.source in self._own or load.source not in self._vectors:
                continue
            maker = self.plan.maker(load.source)
            if maker in stages:
                continue
            buffer, pitch = self._vectors[load.source]
            length = self._length(maker)
            kept = self.own(self._turns(length), f"{buffer.name}_own", str(load.source.dtype))

            def at(column, n, kept=kept, buffer=buffer, pitch=pitch):
                return store(kept, fit(buffer[self._local * index(pitch) + column], kept), n)

            fetched.append(self._columns(length, at))
            self._own[load.source] = kept
        return fetched

    def _length(self, maker: Stage) -> int:
        return self.plan.chain.width(maker)

    def _turns(self, length: int) -> int:
        return -(-length // (self.tile.row_threads * self._run)) * self._run

    def _columns(self, length: int, body, kind: int = UNROLL) -> tirx.Stmt:
        """Return ``body(column, number)`` for each column of this thread; `number` counts them.

        A loop of `kind` goes over the contiguous columns of a thread.
        """
        threads, run = self.tile.row_threads, self._run

        def turn(number):
            unit = self.simple(self._slice + number * index(threads))

            def at(v):
                column = self.simple(unit * index(run) + v)
                inside = None if length % run == 0 else column < index(length)
                return when(inside, self.scope.simplify(body(column, number * index(run) + v)))

            return self.scope.loop(run, at, "v", kind)

        whole, rest = divmod(-(-length // run), threads)
        last = tirx.IfThenElse(self._slice < index(rest), turn(index(whole)), None) if rest else None
        return block(self.scope.loop(whole, turn, "c", UNROLL) if whole else None, last)

    def _stage(self, stage: Stage) -> tirx.Stmt:
        if stage.reduction:
            return self._statistic(stage)
        return self._map(stage) if self.plan.is_vector(stage) else self._scalar(stage)

    def _here(self, stage: Stage, expr, number, **indices):
        """Return `expr` at the `number`-th value of this thread; results of the part are read from registers."""

        def read(load):
            kept = self._own.get(load.source)
            if kept is None:
                return None
            maker = self.plan.maker(load.source)
            return kept[number if self.plan.is_vector(maker) else index(0)]

        here = self.plan.at(stage, expr, batch=self.batch, row=self.row(self._local), **indices)
        return replace_loads(replace_loads(here, read), self._scalar_on_chip)

    def _scalar_on_chip(self, load):
        return self._scalars[load.source][self._local] if load.source in self._scalars else None

    def _map(self, stage: Stage) -> tirx.Stmt:
        """Compute an element-wise stage on the columns of this thread."""
        plan, length = self.plan, self._length(stage)
        kept = self.own(self._turns(length), f"{stage.body.buffer.name}_own", str(stage.body.buffer.dtype))

        computed = self._columns(
            length, lambda column, n: store(kept, self._here(stage, stage.body.value, n, column=column), n)
        )
        self._own[stage.body.buffer] = kept
        left = None
        if plan.leaves(stage):
            left = self._columns(length, lambda column, n: self.leave(stage, kept[n], self._local, column), VECTOR)
            left = when(self.exists(self._local), left)
        return block(computed, left, self._put(stage, kept) if stage in plan.slot_of else None)

    def _put(self, stage: Stage, kept) -> tirx.Stmt:
        """Store the columns of this thread to shared memory, and zeros up to the pitch: a product reads whole tiles."""
        buffer, pitch = self._vectors[stage.body.buffer]
        length = self._length(stage)
        threads = self.tile.row_threads

        def place(column):
            return self._local * index(pitch) + column

        values = self._columns(length, lambda column, n: store(buffer, fit(kept[n], buffer), place(column)))

        def zero(n):
            column = self.simple(index(length) + self._slice + n * index(threads))
            return when(column < index(pitch), store(buffer, tirx.const(0, self.plan.dtype), place(column)))

        return block(values, self.scope.loop(-(-(pitch - length) // threads), zero, "z", UNROLL))

    def _scalar(self, stage: Stage) -> tirx.Stmt:
        """Compute a number per row from other numbers per row."""
        kept = self.own(1, f"{stage.body.buffer.name}_own", str(stage.body.buffer.dtype))
        body = store(kept, self._here(stage, stage.body.value, index(0)), 0)
        self._own[stage.body.buffer] = kept
        return block(self.scope.simplify(body), self._publish(stage, kept))

    def _publish(self, stage: Stage, kept) -> tirx.Stmt | None:
        """Store a number per row to shared memory if a later part reads it, or to the result."""
        if self.plan.leaves(stage):
            body = self.leave(stage, kept[index(0)], self._local, index(0))
            return when(self.exists(self._local), when(self._slice.equal(index(0)), self.scope.simplify(body)))
        if not self.plan.is_read_later(stage):
            return None
        values = self.share(self.tile.rows, f"{stage.body.buffer.name}_kept", str(stage.body.buffer.dtype))
        self._scalars[stage.body.buffer] = values
        return when(self._slice.equal(index(0)), store(values, kept[index(0)], self._local))

    def _statistic(self, stage: Stage) -> tirx.Stmt:
        combine, term = combiner_of(stage)
        name = stage.body.buffer.name
        kept = self.own(1, f"{name}_own", str(stage.body.buffer.dtype))

        def at(column, n):
            return store(kept, combine(kept[index(0)], self._here(stage, term, n, depth=column)), 0)

        start = store(kept, stage.init.value, 0)
        own = self._columns(self.plan.length(stage), at)
        body = block(start, own, self._combine(combine, kept, name))
        self._own[stage.body.buffer] = kept
        return block(body, self._publish(stage, kept))

    def _combine(self, combine, kept, name: str) -> tirx.Stmt | None:
        """Combine the partial results of the threads of a row, in each of these threads."""
        threads = self.tile.row_threads
        if threads == 1:
            return None
        partial = self.share(self.tile.threads, f"{name}_parts", str(kept.dtype))

        def part(n):
            return partial[self.simple(self._local * index(threads) + n)]

        def add(n):
            return store(kept, combine(kept[index(0)], part(n + index(1))), 0)

        return block(
            store(partial, kept[index(0)], self.thread),
            store(kept, part(index(0)), 0),
            self.scope.loop(threads - 1, add, "p", UNROLL),
        )
