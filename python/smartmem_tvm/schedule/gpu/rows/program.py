# SPDX-License-Identifier: Apache-2.0
"""Represent stages that share their rows as a program on one row: statistics, scalars, vectors along its columns.

    sum[i, j] += x[i, k, j];  out[i, k, j] = x[i, k, j] / sum[i, j]
    ->
    row = i * J + j:   c[k] = x[row // J, k, row % J];   sum = reduce(c[k]);   out[...] = c[k] / sum

A program has two variables only: the row, and the column of a step. An expression that several steps read becomes a
step of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import tvm_ffi
from tvm import ir, tirx

from ....ir.index_map import is_if_then_else
from ....ir.kernel import Kernel, Stage, substitute
from ....ir.strength_reduction import Simplifier
from ....ir.walk import loads
from ...core.expressions import Walk, replace_loads, split_index, uses
from ...core.nest import fresh, index
from ...core.reduction import combiner_of
from ...core.row_space import RowSpace, row_space_of

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_MOST_ORDERS = 24  # orders of the axes of a row that are tried. Chosen: all those of four axes of equal extents


@dataclass(frozen=True, eq=False)
class Step:
    """The part of one stage on a row.

    Attributes
    ----------
    buffer : buffer
        The buffer that the stage writes, at `indices`.
    value : expression
        The value stored, in the variables of the program; for a statistic the term of one column.
    length : int
        Columns; 1 for a value per row that is computed from others.
    combine, start : callable and expression
        Combiner and start value of a statistic, otherwise None.
    """

    buffer: object
    indices: tuple
    value: object
    length: int
    combine: Callable | None = None
    start: object = None
    is_vector: bool = False

    @property
    def is_statistic(self) -> bool:
        """Whether the step reduces its columns."""
        return self.combine is not None


@dataclass(frozen=True, eq=False)
class RowProgram:
    """Steps in order; `row` runs over ``[0, rows)``, `column` over the columns of each step."""

    row: object
    column: object
    rows: int
    steps: tuple[Step, ...]
    outputs: tuple

    def writes(self, step: Step) -> bool:
        """Whether the result of a step is an output of the kernel."""
        return any(step.buffer.same_as(o) for o in self.outputs)

    def read_later(self, step: Step) -> bool:
        """Whether another step reads the result of `step`."""
        return any(load.source.same_as(step.buffer) for other in self.steps for load in loads(other.value))

    @property
    def length(self) -> int:
        """Columns of the longest step."""
        return max(step.length for step in self.steps)


def row_program_of(kernel: Kernel) -> RowProgram | None:
    """Return the program of a kernel, or None if its stages share no rows or read columns in another order."""
    space = row_space_of(kernel)
    if space is None or any(s.reduction and space.inner(s) for s in space.kernel.stages):
        return None
    return _Builder(space).program()


class _Builder:
    def __init__(self, space: RowSpace):
        self.space, self.row, self.column = space, fresh("row"), fresh("column")
        self.rows = math.prod(space.extents)
        self.row_order = self._order_of_rows()
        self.steps: list[Step] = []
        self.extents: list[int] | None = None  # of the columns of the first statistic, in the order chosen

    def program(self) -> RowProgram | None:
        for stage in self.space.kernel.stages:
            step = self._step(stage)
            if step is None:
                return None
            self.steps.append(step)
        return RowProgram(self.row, self.column, self.rows, tuple(self.steps), self.space.kernel.outputs)

    def _order_of_rows(self) -> list[int]:
        """Return the row iterators by falling stride in the loads of the first statistic."""
        stage = next(s for s in self.space.kernel.stages if s.reduction)
        rows = self.space.rows_of(stage)
        strides = _strides(stage)
        return sorted(range(len(rows)), key=lambda n: -strides.get(rows[n], 0))

    def _step(self, stage: Stage) -> Step | None:
        columns = list(stage.reduction or self.space.inner(stage))
        best, most = None, -1
        for order in self._orders(stage, columns):
            step = self._in_order(stage, order)
            shared = self._shared(step)
            if shared > most:
                best, most = step, shared
        if best is None or not self._reads_its_own_columns(best):
            return None
        if self.extents is None and stage.reduction:
            self.extents = [stage.extents[v] for v in _by_stride(stage, columns)]
        return best

    def _orders(self, stage: Stage, columns: list) -> list[Sequence]:
        if self.extents is None:
            return [_by_stride(stage, columns)]
        if len(columns) > 4:
            return [columns]
        orders = [p for p in permutations(columns) if [stage.extents[v] for v in p] == self.extents]
        return orders[:_MOST_ORDERS] or [columns]

    def _in_order(self, stage: Stage, columns: Sequence) -> Step:
        length = math.prod(stage.extents[v] for v in columns)
        rows = self.space.rows_of(stage)
        place = split_index(self.row, [rows[n] for n in self.row_order], stage.extents)
        place.update(split_index(self.column, columns, stage.extents))
        simplifier = Simplifier({self.row: self.rows, self.column: length})
        combine, value = combiner_of(stage) if stage.reduction else (None, stage.body.value)
        indices = simplifier.indices([substitute(i, place) for i in stage.body.indices], stage.body.buffer.shape)
        return Step(
            stage.body.buffer,
            tuple(indices),
            simplifier.body(substitute(value, place)),
            length,
            combine,
            stage.init.value if stage.reduction else None,
            is_vector=not stage.reduction and bool(columns),
        )

    def _shared(self, step: Step) -> int:
        """Return the number of loads that earlier steps have as well."""
        before = [load for other in self.steps for load in (*loads(other.value), other.buffer[other.indices])]
        return sum(any(tvm_ffi.structural_equal(load, other) for other in before) for load in loads(step.value))

    def _reads_its_own_columns(self, step: Step) -> bool:
        for load in loads(step.value):
            maker = next((s for s in self.steps if load.source.same_as(s.buffer)), None)
            if maker is None or not maker.is_vector:
                continue
            same = tvm_ffi.structural_equal(tuple(load.indices), tuple(maker.indices))
            if not same or maker.length != step.length:
                return False
        return True


def _strides(stage: Stage) -> dict:
    """Return for each iterator the stride of the first load that moves along it; none if no load has a fixed stride."""
    walk, found = Walk(stage.extents), {}
    for load in stage.loads:
        for var in stage.extents:
            stride = walk.stride(load.source, load.indices, var)
            if stride and var not in found:
                found[var] = abs(stride)
    return found


def _by_stride(stage: Stage, columns: list) -> list:
    strides = _strides(stage)
    if any(v not in strides for v in columns):
        return columns
    return sorted(columns, key=lambda v: -strides[v])


def collected(program: RowProgram) -> RowProgram:
    """Return the program with the expressions of inputs that several steps share as vectors of their own, read once."""
    made = {step.buffer for step in program.steps}
    values: list[tuple] = []  # expression, the steps it occurs in

    def note(expr, number: int) -> None:
        if _is_input_along(expr, program.column, made):
            for known, where in values:
                if program.steps[min(where)].length == program.steps[number].length and _same(known, expr):
                    where.add(number)
                    break
            else:
                values.append((expr, {number}))
        for part in _parts(expr):
            note(part, number)

    for number, step in enumerate(program.steps):
        note(step.value, number)
    common = [(expr, min(where)) for expr, where in values if len(where) > 1]
    vectors: list[Step | None] = [None] * len(common)

    def take(expr, number: int):
        for position, (known, first) in enumerate(common):
            if program.steps[first].length == program.steps[number].length and _same(known, expr):
                vectors[position] = vectors[position] or _vector(program, expr, program.steps[number].length)
                step = vectors[position]
                return step.buffer[step.indices]
        if isinstance(expr, _ARITHMETIC):
            return type(expr)(take(expr.a, number), take(expr.b, number))
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(expr.ty.dtype, take(expr.value, number))
        if isinstance(expr, ir.Call) and not is_if_then_else(expr):
            return ir.Call(expr.op, [take(a, number) for a in expr.args], expr.attrs, expr.ty_args, ret_ty=expr.ty)
        return expr

    steps = [replace(step, value=take(step.value, number)) for number, step in enumerate(program.steps)]
    for position in reversed(range(len(common))):
        if vectors[position] is not None:
            at = next(n for n, s in enumerate(steps) if _reads(s, vectors[position]))
            steps.insert(at, vectors[position])
    return replace(program, steps=tuple(steps))


def _reads(step: Step, vector: Step) -> bool:
    return any(load.source.same_as(vector.buffer) for load in loads(step.value))


def _vector(program: RowProgram, value, length: int) -> Step:
    buffer = tirx.decl_buffer([index(program.rows), index(length)], value.ty.dtype, "row", layout=None)
    return Step(buffer, (program.row, program.column), value, length, is_vector=True)


def _same(first, second) -> bool:
    return tvm_ffi.structural_equal(first, second)


def _is_input_along(expr, column, made: set) -> bool:
    found = loads(expr)
    return bool(found) and bool(uses(expr, [column])) and not any(load.source in made for load in found)


def _parts(expr) -> list:
    """Return the operands that are computed whenever `expr` is."""
    if isinstance(expr, _ARITHMETIC):
        return [expr.a, expr.b]
    if isinstance(expr, tirx.Cast):
        return [expr.value]
    if isinstance(expr, ir.Call) and not is_if_then_else(expr):
        return list(expr.args)
    return []


def without_vectors(program: RowProgram) -> RowProgram:
    """Return the program without vectors between its steps: each reader recomputes its operands."""
    values = {}

    def again(load):
        return values.get(load.source)

    steps = []
    for step in program.steps:
        step = replace(step, value=replace_loads(step.value, again))
        if step.is_vector:
            values[step.buffer] = step.value
        if not step.is_vector or program.writes(step):
            steps.append(step)
    return replace(program, steps=tuple(steps))
