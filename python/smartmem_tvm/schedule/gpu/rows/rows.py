# SPDX-License-Identifier: Apache-2.0
"""Row-wise kernels on a GPU: normalisations, softmax, sums and maxima along any axes, pooling, a matrix times a vector.

    thread block = `lanes` rows x `slices` of each:
      values of the row into registers, once
      partial[thread] = combine(own values)       shared memory
      statistic = combine(partials of the row)    in every thread of the row
      out = f(registers, statistics)

No thread relies on another one being in lockstep: threads communicate through shared memory and barriers only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tvm import tirx

from ....ir.kernel import Kernel, substitute
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ...core.coded_panels import panels_of
from ...core.contraction import contraction_of
from ...core.decisions import attempt, decide, declined
from ...core.expressions import replace_loads
from ...core.nest import UNROLL, VECTOR, Scope, allocate, block, index, store
from ...core.reduction import reduction_of
from ..elementwise import GpuElementwise
from ..launch import GpuParams, GpuRule, launch, registers, shared, when
from .hidden_rows import split_hidden_rows
from .pieces import in_pieces
from .program import RowProgram, Step, collected, row_program_of, without_vectors
from .row_plan import (
    DIRECT,
    RowPlan,
    begun_numbers,
    fitting_plan,
    is_short,
    kept_numbers,
    plan_of,
    row_room,
    writes_by_columns,
)
from .split_reduction import pays_in_pieces, split_reduction

_WRITTEN_OUT = 64  # steps of a loop that is fully unrolled, at most. Chosen: the code of a kernel stays short
_STRIP = 8  # steps of a longer loop that are unrolled. Chosen: no times were kept (2026-11-21)


class GpuRows(GpuRule):
    """The rule for kernels whose stages share their rows and reduce within a row."""

    def plan(self, kernel: Kernel, params: GpuParams) -> _Launches | None:
        """Return the launches, or None if the kernel's stages share no rows, or a matmul is among them."""
        if _holds_matmuls(kernel):
            return declined("it has a matmul, which other rules tile")
        plan = self._plan(kernel, params)
        return declined("its stages share no rows, or none reduces") if plan is None else plan

    def emit(self, plan: _Launches) -> tirx.Stmt:
        """Return one launch after the other."""
        return allocate(list(plan.between), block(*(nest() for nest in plan.nests)))

    def _plan(self, kernel: Kernel, params: GpuParams) -> _Launches | None:
        reducing = [stage for stage in kernel.stages if stage.reduction]
        if len(reducing) > 1 and pays_in_pieces(reducing, params.busy_blocks):
            ways = (self._piece_by_piece, self._stage_by_stage, self._at_once)
            return next(filter(None, (attempt(partial(way, kernel, params)) for way in ways)), None)
        halves = split_reduction(kernel, params.busy_blocks)
        if halves is None:
            return self._at_once(kernel, params)
        parts = [self._at_once(half, params) for half in halves]
        return None if None in parts else _together(parts, halves[0].outputs)

    def _piece_by_piece(self, kernel: Kernel, params: GpuParams) -> _Launches | None:
        """Plan a launch for each statistic and one for the rest: few rows, each too long for one thread block."""
        program = program_of(kernel)
        programs = in_pieces(program, 2 * params.busy_blocks) if program is not None else None
        if programs is None:
            return None
        parts = [self._planned(each, params) for each in programs]
        outputs = set(kernel.outputs)
        return _together(parts, [each for p in programs for each in p.outputs if each not in outputs])

    def _stage_by_stage(self, kernel: Kernel, params: GpuParams) -> _Launches | None:
        """Plan a launch or two for each stage: few rows, each too long for one thread block."""
        nests, read = [], list(kernel.inputs)
        for stage in kernel.stages:
            part = Kernel(tuple(read), stage.outputs, (stage,))
            rule = self if stage.reduction else GpuElementwise()
            plan = rule.plan(part, params)
            if plan is None:
                return None
            nests.append(partial(rule.emit, plan))
            read += stage.outputs
        return _Launches(tuple(nests))

    def _at_once(self, kernel: Kernel, params: GpuParams) -> _Launches | None:
        """Plan one launch for the whole kernel, or return None."""
        program = program_of(kernel)
        return None if program is None else self._planned(program, params)

    @staticmethod
    def _planned(program: RowProgram, params: GpuParams) -> _Launches:
        whole = collected(program)
        plan = fitting_plan(whole, params)
        if plan is None:
            whole = without_vectors(program)
            plan = fitting_plan(whole, params) or plan_of(whole, params)
        facts = {"rows": whole.rows, "length": whole.length, "across": plan.across, "vector": plan.vector}
        facts |= {"turned": plan.turned, "threads": params.limits.work_group, "shared": params.limits.shared_bytes}
        plan = decide("gpu_rows", plan, **facts)
        together = TEXEL if params.limits.phone else 1
        return _Launches((_RowProgramNest(whole, plan, together, row_room(whole, plan, params)).kernel,))


@dataclass(frozen=True)
class _Launches:
    """Launches, one after the other.

    Attributes
    ----------
    nests : tuple of callable
        Functions that make the loop nest of each launch.
    between : tuple of buffer
        Buffers in global memory that one launch writes and a later one reads.
    """

    nests: tuple[Callable[[], tirx.Stmt], ...]
    between: tuple = ()


def _together(parts: Sequence[_Launches], between: Sequence) -> _Launches:
    return _Launches(tuple(nest for part in parts for nest in part.nests), tuple(between))


def program_of(kernel: Kernel) -> RowProgram | None:
    """Return the program of a kernel; None if it has none, or texels that it writes do not lie along the columns."""
    program = row_program_of(kernel) or row_program_of(split_hidden_rows(kernel))
    return program if program is not None and writes_by_columns(program) else None


def _holds_matmuls(kernel: Kernel) -> bool:
    """Whether a kernel has a matmul, or, as one of several reductions, a product of a weight in codes."""
    several = sum(bool(stage.reduction) for stage in kernel.stages) > 1
    for stage in kernel.stages:
        reduction = reduction_of(Kernel(kernel.inputs, stage.outputs, (stage,))) if stage.reduction else None
        found = contraction_of(reduction) if reduction is not None else None
        if found is None:
            continue
        coded = several and any(panels_of(side) is not None for side in (found.left, found.right))
        if coded or min(map(found.extent, (found.rows, found.columns))) > 1:
            return True
    return False


class _RowProgramNest:
    """The loop nest of a program.

    Parameters
    ----------
    together : int
        Partial results of a row that a thread reads from shared memory and combines as one vector. On an NVIDIA GPU, 1:
        those of a row have a distance of `lanes` there, so that threads access neighbouring banks.
    room : int, optional
        Numbers of four bytes for which a thread has registers beside its sums: a phone's compiler begins the loads of
        all unrolled turns first. By default no bound.
    """

    def __init__(self, program: RowProgram, plan: RowPlan, together: int = 1, room: int | None = None):
        self.program, self.plan, self.scope, self.together = program, plan, Scope(), together
        self.room = room
        self.local: dict = {}  # result of a step -> values that a thread keeps of it
        self.vectors = {step.buffer for step in program.steps if step.is_vector}
        self.buffers: list = []

    def kernel(self) -> tirx.Stmt:
        """Return the whole loop nest."""
        blocks = -(-self.program.rows // self.plan.lanes)
        return launch(self.scope, blocks, self.plan.threads, self._thread)

    def _thread(self, number, thread) -> tirx.Stmt:
        plan, rows = self.plan, self.program.rows
        self.thread, self.first = thread, number * plan.lanes
        quotient, rest = (self._simple(f(thread, index(n))) for f, n in self._split())
        self.lane, self.slice = (rest, quotient) if plan.across else (quotient, rest)
        row = self._simple(self.first + self.lane)
        self.valid = row < rows if rows % plan.lanes else None
        self.row = tirx.min(row, index(rows - 1)) if self.valid is not None else row
        body = block(*(self._step(step) for step in self.program.steps))
        return allocate(self.buffers, body)

    def _split(self) -> tuple:
        inner = index(self.plan.lanes if self.plan.across else self.plan.slices)
        return (tirx.floordiv, inner), (tirx.floormod, inner)

    def _simple(self, expr):
        return self.scope.analyzer.simplify(expr)

    def _new(self, buffer):
        self.buffers.append(buffer)
        return buffer

    # -- steps ---------------------------------------------------------------------------------------------------

    def _step(self, step: Step) -> tirx.Stmt:
        if step.is_statistic:
            return self._statistic(step)
        return self._vector(step) if step.is_vector else self._scalar(step)

    def _value(self, step: Step, column, at):
        """Return the value of a step at a column, the `at`-th one of this thread."""
        here = substitute(step.value, {self.program.row: self.row, self.program.column: column})

        def read(load):
            kept = self.local.get(load.source)
            if kept is None:
                return None
            return kept[at if load.source in self.vectors else index(0)]

        return replace_loads(here, read)

    def _write(self, step: Step, value, column, row=None) -> tirx.Stmt:
        place = {self.program.row: self.row if row is None else row, self.program.column: column}
        return tirx.BufferStore(step.buffer, value, [substitute(i, place) for i in step.indices])

    def _scalar(self, step: Step) -> tirx.Stmt:
        kept = self._new(registers(1, step.buffer.ty.dtype, f"{step.buffer.name}_row"))
        compute = self.scope.simplify(store(kept, self._value(step, index(0), index(0)), 0))
        self.local[step.buffer] = kept
        return block(compute, self._write_scalar(step, kept))

    def _write_scalar(self, step: Step, kept) -> tirx.Stmt | None:
        if not self.program.writes(step):
            return None
        first = self.slice.equal(index(0)) if self.plan.slices > 1 else None
        body = self.scope.simplify(self._write(step, kept[index(0)], index(0)))
        return when(self.valid, when(first, body))

    def _vector(self, step: Step) -> tirx.Stmt:
        keeps, writes = self.program.read_later(step), self.program.writes(step)
        turned = writes and self.plan.turned and step is self.program.steps[-1]
        if keeps:
            size = self.plan.turns(step.length) * self.plan.vector
            kept = self._new(registers(size, step.buffer.ty.dtype, f"{step.buffer.name}_row"))
        tile = self._new(self._tile(step)) if turned else None

        def at(column, number):
            value = self._value(step, column, number)
            if turned:
                return store(tile, value, self.lane * index(step.length | 1) + column)
            if not keeps:
                return self._write(step, value, column)
            body = store(kept, value, number)
            return block(body, when(self.valid, self._write(step, kept[number], column))) if writes else body

        body = self._columns(step, at)
        if not keeps and not turned:
            body = when(self.valid, body)
        if keeps:
            self.local[step.buffer] = kept
        return block(body, self._leave(step, tile)) if turned else body

    # -- columns of a thread -------------------------------------------------------------------------------------

    def _columns(self, step: Step, body) -> tirx.Stmt:
        """Return ``body(column, number)`` for each column of this thread; `number` counts them."""
        plan, length = self.plan, step.length
        whole = length // (plan.slices * plan.vector)

        def each(number, j):
            unit = self.slice + number * index(plan.slices)
            return body(unit * index(plan.vector) + j, number * index(plan.vector) + j)

        def turn(number):
            return self._together(lambda j: each(number, j))

        last, rest = None, length - whole * plan.slices * plan.vector
        if rest and rest % plan.vector == 0:
            last = tirx.IfThenElse(self.slice * index(plan.vector) < index(rest), turn(index(whole)), None)
        elif rest:  # the step has no whole number of vectors: the row ends within a texel that is written
            last = self._some(rest, lambda j: each(index(whole), j))
        return block(self._turns(whole, turn, self._most_turns(step)) if whole else None, last)

    def _most_turns(self, step: Step) -> int:
        """Return the turns of a step that are unrolled at most: all of them if it has vectors in registers."""
        kept = [*self.local, *(s.buffer for s in (step,) if s.is_vector and self.program.read_later(s))]
        holds = step.buffer in kept or any(load.source in self.vectors for load in loads(step.value))
        if self.room is None or holds:
            return _WRITTEN_OUT
        each = begun_numbers(self.program, step, self.plan, self.local)
        return max(1, (self.room - kept_numbers(self.program, self.plan)) // max(1, each))

    def _some(self, count: int, body) -> tirx.Stmt:
        """Return ``body(j)`` for each column of the vector that is below `count`."""
        first = self.slice * index(self.plan.vector)

        def guarded(j):
            return tirx.IfThenElse(self._simple(first + j < index(count)), self.scope.simplify(body(j)), None)

        return self.scope.loop(self.plan.vector, guarded, "j", UNROLL)

    def _turns(self, count: int, turn, most: int = _WRITTEN_OUT) -> tirx.Stmt:
        if count <= min(most, _WRITTEN_OUT):
            return self.scope.loop(count, turn, "i", UNROLL)
        many = min(most, _STRIP)
        strips = count // many

        def strip(s):
            return self.scope.loop(many, lambda i: turn(s * index(many) + i), "i", UNROLL)

        rest = self.scope.loop(count % many, lambda i: turn(index(strips * many) + i), "i", UNROLL)
        return block(self.scope.loop(strips, strip, "strip"), rest if count % many else None)

    def _together(self, body) -> tirx.Stmt:
        if self.plan.vector == 1:
            return self.scope.simplify(body(index(0)))
        return self.scope.loop(self.plan.vector, lambda j: self.scope.simplify(body(j)), "j", VECTOR)

    # -- statistics ----------------------------------------------------------------------------------------------

    def _statistic(self, step: Step) -> tirx.Stmt:
        if is_short(self.program, step, self.plan):
            return self._by_each_thread(step)
        name, dtype, vector = step.buffer.name, step.buffer.ty.dtype, self.plan.vector
        parts = self._new(registers(vector, dtype, f"{name}_own"))
        start = self._together(lambda j: store(parts, step.start, j))
        own = self._columns(
            step,
            lambda column, number: store(
                parts,
                step.combine(parts[self._within(number)], self._value(step, column, number)),
                self._within(number),
            ),
        )
        total = parts[index(0)]
        for j in range(1, vector):
            total = step.combine(total, parts[index(j)])
        kept = parts
        folded = store(parts, total, 0) if vector > 1 else None
        body = block(start, own, folded)
        if self.plan.slices > 1:
            kept = self._new(registers(1, dtype, name))
            body = block(body, self._combine(step, parts, kept))
        self.local[step.buffer] = kept
        return block(body, self._write_scalar(step, kept))

    def _by_each_thread(self, step: Step) -> tirx.Stmt:
        """Let each thread of the row read all columns, so that no thread waits for another."""
        kept = self._new(registers(1, step.buffer.ty.dtype, step.buffer.name))

        def more(j):
            return store(kept, step.combine(kept[index(0)], self._value(step, j, j)), 0)

        self.local[step.buffer] = kept
        return block(
            store(kept, step.start, 0), self.scope.loop(step.length, more, "p", UNROLL), self._write_scalar(step, kept)
        )

    def _within(self, number):
        return self._simple(tirx.floormod(number, index(self.plan.vector)))

    def _combine(self, step: Step, own, kept) -> tirx.Stmt:
        """Combine the partial results `own` of the threads of a row into `kept` of each of these threads."""
        plan, dtype, name = self.plan, step.buffer.ty.dtype, step.buffer.name
        if plan.slices <= DIRECT and plan.slices % self.together == 0 and self.together > 1:
            # The vectors between rows keep rows in different banks.
            pitch = index(plan.slices + self.together)
            parts = self._new(shared(plan.lanes * (plan.slices + self.together), dtype, f"{name}_parts"))
            deposit = store(parts, own[index(0)], self._simple(self.lane * pitch + self.slice))
            return block(deposit, self._gather(step, parts, kept, plan.slices, 0, 1, lambda j: self.lane * pitch + j))
        parts = self._new(shared(plan.threads, dtype, f"{name}_parts"))
        deposit = store(parts, own[index(0)], self.thread)
        if plan.slices <= DIRECT:
            return block(deposit, self._gather(step, parts, kept, plan.slices, 0, 1, self._shared_at))
        heads = _heads(plan.slices)
        fewer = self._new(shared(plan.lanes * heads, dtype, f"{name}_heads"))

        def head_at(j):
            return self.lane * index(heads) + j

        first = block(
            self._gather(step, parts, kept, plan.slices // heads, self.slice, heads, self._shared_at),
            store(fewer, kept[index(0)], head_at(self.slice)),
        )
        return block(
            deposit,
            tirx.IfThenElse(self.slice < heads, first, None),
            self._gather(step, fewer, kept, heads, 0, 1, head_at),
        )

    def _shared_at(self, j):
        return j * index(self.plan.lanes) + self.lane if self.plan.across else self.lane * index(self.plan.slices) + j

    def _gather(self, step: Step, parts, kept, count: int, first, stride: int, at) -> tirx.Stmt:
        """Return ``kept = combine(parts[at(first)], parts[at(first + stride)], ...)``."""

        def part(j):
            return parts[self._simple(at(first + j * index(stride)))]

        if stride == 1 and self.together > 1 and count % self.together == 0:
            return self._gather_vectors(step, kept, count, part)
        more = self.scope.loop(
            count - 1, lambda j: store(kept, step.combine(kept[index(0)], part(j + index(1))), 0), "p", UNROLL
        )
        return block(store(kept, part(index(0)), 0), more if count > 1 else None)

    def _gather_vectors(self, step: Step, kept, count: int, part: Callable) -> tirx.Stmt:
        """Return the same for contiguous partial results, ``part(0)`` first, which are combined as vectors."""
        width = self.together
        some = self._new(registers(width, step.buffer.ty.dtype, f"{step.buffer.name}_some"))

        def vector(value: Callable) -> tirx.Stmt:
            return self.scope.loop(width, lambda v: self.scope.simplify(store(some, value(v), v)), "v", VECTOR)

        def more(p):
            return vector(lambda v: step.combine(some[v], part((p + index(1)) * index(width) + v)))

        total = some[index(0)]
        for each in range(1, width):
            total = step.combine(total, some[index(each)])
        rest = self.scope.loop(count // width - 1, more, "p", UNROLL) if count > width else None
        return block(vector(part), rest, store(kept, total, 0))

    # -- transposed results ---------------------------------------------------------------

    def _tile(self, step: Step):
        return shared(self.plan.lanes * (step.length | 1), step.buffer.ty.dtype, f"{step.buffer.name}_tile")

    def _leave(self, step: Step, tile) -> tirx.Stmt:
        """Write the rows of the thread block from shared memory, in the order of global memory."""
        plan, length = self.plan, step.length
        total = plan.lanes * length

        def at(number):
            flat = self.thread + number * index(plan.threads)
            size = index(length if plan.across else plan.lanes)
            high, low = self._simple(tirx.floordiv(flat, size)), self._simple(tirx.floormod(flat, size))
            lane, column = (high, low) if plan.across else (low, high)
            row = self.first + lane
            body = self._write(step, tile[lane * index(length | 1) + column], column, row)
            body = self.scope.simplify(body)
            return body if self.valid is None else tirx.IfThenElse(row < self.program.rows, body, None)

        whole = total // plan.threads
        rest = total - whole * plan.threads
        last = tirx.IfThenElse(self.thread < rest, at(index(whole)), None) if rest else None
        return block(self._turns(whole, at) if whole else None, last)


def _heads(slices: int) -> int:
    """Return how many threads of a row combine a share of its partial results: a divisor near the root of `slices`."""
    return min((n for n in range(1, slices + 1) if slices % n == 0), key=lambda n: n + slices // n)
