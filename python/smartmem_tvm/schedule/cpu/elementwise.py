# SPDX-License-Identifier: Apache-2.0
"""Element-wise and data-movement kernels on a CPU: one pass over the output, in the order of its memory."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from ...ir.blends import branches
from ...ir.kernel import Kernel, Stage, substitute
from ...ir.walk import loads
from ..core.concatenation_pieces import pieces
from ..core.decisions import decide, declined
from ..core.expressions import Walk, accesses_of, fusable_suffix, lie_side_by_side, memory_order, split_index
from ..core.nest import PARALLEL, SERIAL, Scope, allocate, block, fresh, index, scratch, split_work, store
from ..core.positions import axis_of, before_length
from .params import CpuParams
from .rule import CpuRule
from .tables import tabulated
from .transposed_tile import turn

# Vectors; a shorter line is emitted as vectors. Chosen: LLVM would unroll a loop over so few elements, and then gather
# and scatter vectors across many lines, as measured in docs/cpu.md (Choices and short lines, 2026-11-27).
_SHORT = 4


_Plan = tuple[list[Stage], CpuParams]


@dataclass(frozen=True)
class ElementwiseChoice:
    """Wanted number of tasks; a single one runs on the calling thread."""

    tasks: int


@dataclass(frozen=True)
class TransposeChoice:
    """Wanted number of tasks, and the side of a square tile in elements."""

    tasks: int
    side: int


class Elementwise(CpuRule):
    """The rule for kernels of one stage that does not reduce.

    Iterators along which all tensors have constant strides are fused into one long inner loop, which LLVM vectorises
    with its remainder; the other iterators are divided into equal tasks.
    """

    def plan(self, kernel: Kernel, params: CpuParams) -> _Plan | None:
        """Return the passes over the results, or None if the kernel reduces or has several stages."""
        stage = kernel.stages[0]
        if len(kernel.stages) > 1:
            return declined(f"{len(kernel.stages)} stages that do not fold into one")
        if stage.reduction or not isinstance(stage.body, tirx.BufferStore):
            return declined("it reduces")
        return [piece.last for piece in pieces(kernel)], params

    def emit(self, plan: _Plan) -> tirx.Stmt:
        """Return one pass after the other; the tasks of each are decided while it is emitted."""
        stages, params = plan
        return block(*(self._pass(stage, params) for stage in stages))

    @staticmethod
    def _pass(stage: Stage, params: CpuParams) -> tirx.Stmt:
        """Return one pass over the results of a stage."""
        unit = {v: index(0) for v in stage.spatial if stage.extents[v] == 1}
        extents = {v: e for v, e in stage.extents.items() if v not in unit}
        stage = Stage(stage.name, tuple(it for it in stage.iters if it.var in extents), substitute(stage.body, unit))
        order = memory_order(stage.spatial, extents, stage.body.buffer, stage.body.indices)
        fused = fusable_suffix(order, extents, accesses_of(stage))
        fused = _behind_positions(stage, extents, order, fused, params)
        outer, inner = order[: len(order) - fused], order[len(order) - fused :]
        stage, tables, fills = tabulated(stage, inner)
        return allocate(tables, block(*fills, _emit(stage, extents, outer, inner, params)))


def _behind_positions(stage: Stage, extents, order, fused: int, params: CpuParams) -> int:
    """Return how many iterators make a line that is left out whole behind the length; `fused` if it would be short."""
    axis = axis_of(stage.body.buffer)
    along = None if axis is None else stage.body.indices[axis]
    behind = next((len(order) - 1 - place for place, var in enumerate(order) if var.same_as(along)), fused)
    line = _product(order[len(order) - behind :], extents) if behind else 1
    return behind if behind < fused and line >= params.lanes else fused


def _product(vars_, extents) -> int:
    total = 1
    for var in vars_:
        total *= extents[var]
    return total


def _emit(stage: Stage, extents, outer, inner, params: CpuParams) -> tirx.Stmt:
    crossed = _crossed(stage, extents, outer, inner)
    if crossed is not None:
        return _emit_transposed(stage, extents, [v for v in outer if v not in crossed], inner, crossed, params)
    scope, rows, length = Scope(), _product(outer, extents), _product(inner, extents)
    axis = axis_of(stage.body.buffer)
    ends = None if axis is None else next((v for v in outer if v.same_as(stage.body.indices[axis])), None)
    short = bool(inner) and length < _SHORT * params.lanes and lie_side_by_side(stage, inner[-1])
    choice = ElementwiseChoice(params.tasks if rows * length >= params.serial_below else 1)
    wanted = decide("elementwise", choice, rows=rows, length=length, **params.facts).tasks
    if rows >= wanted or length < _SHORT * params.lanes:
        chunk, tasks = split_work(rows, wanted)
        piece, pieces = length, 1
    else:
        chunk, tasks = 1, rows
        piece, pieces = split_work(-(-length // params.lanes), -(-wanted // rows))
        piece *= params.lanes

    def element(place: dict, column) -> tirx.Stmt:
        return scope.simplify(substitute(stage.body, {**place, **split_index(column, inner, extents)}))

    def line(place: dict, start, count) -> tirx.Stmt:
        if short:
            nest = scope.line(length, params.lanes, lambda j: element(place, j), "j")
        else:
            nest = scope.loop(count, lambda j: element(place, start + j), "j", most=piece)
        return nest if ends is None else before_length(element(place, start), nest)

    if wanted == 1:  # plain loops over the rows, without a division to find the indices of a row
        return scope.nest(outer, extents, lambda place: line(place, index(0), length), "row")

    def task(t):
        first, start = tirx.floordiv(t, index(pieces)) * chunk, tirx.floormod(t, index(pieces)) * piece
        first, start = scope.analyzer.simplify(first), scope.analyzer.simplify(start)
        row_count = chunk if rows % chunk == 0 else tirx.min(index(chunk), index(rows) - first)
        count = piece if length % piece == 0 else tirx.min(index(piece), index(length) - start)
        return scope.loop(
            row_count,
            lambda r: line(split_index(first + r, outer, extents), start, count),
            "row",
            most=chunk,
        )

    return scope.loop(tasks * pieces, task, "task", PARALLEL if tasks * pieces > 1 and wanted > 1 else SERIAL)


def _crossed(stage: Stage, extents, outer, inner) -> list | None:
    """Return the outer iterator along which an operand is contiguous that is not contiguous along the inner loop."""
    walk = Walk(extents)
    for load in loads(stage.body) if inner else ():
        step = walk.strides(load.source, load.indices)
        if step(inner[-1]) in (0, 1):
            continue  # true of most loads, so that the strides along other iterators are not computed
        along = next((v for v in outer if step(v) == 1), None)
        if along is not None and extents[along] >= 4:
            return [along]
    return None


def _turns(stage: Stage, extents, crossed) -> bool:
    """Whether all operands are contiguous or constant along `crossed`: then vectors are computed along it."""
    walk = Walk(extents)
    strides = [walk.stride(load.source, load.indices, crossed) for load in loads(stage.body.value)]
    return str(stage.body.buffer.ty.dtype) == "float32" and all(stride in (0, 1) for stride in strides)


def _emit_transposed(stage: Stage, extents, outer, inner, crossed, params: CpuParams) -> tirx.Stmt:
    """Return square tiles over the contiguous iterators of the output and the operand: both stay in the cache."""
    scope = Scope()
    rows, length, depth = _product(outer, extents), _product(inner, extents), _product(crossed, extents)
    parallel = rows * length * depth >= params.serial_below
    choice = TransposeChoice(params.tasks if parallel else 1, params.transpose_tile)
    choice = decide("transpose", choice, rows=rows, length=length, depth=depth, **params.facts)
    side, dtype = choice.side, str(stage.body.buffer.ty.dtype)
    turns = side % params.lanes == 0 and _turns(stage, extents, crossed[0])
    vector = 1 if branches(stage.body) else params.lanes
    across, down = -(-length // side), -(-depth // side)
    sizes = {"row": rows, "down": down, "across": across}

    def task(t):
        keys = [fresh(name) for name in sizes]
        place = split_index(t, keys, dict(zip(keys, sizes.values(), strict=True)))
        row, first, start = (scope.analyzer.simplify(place[k]) for k in keys)
        first, high = _tile(first, depth, side)
        start, wide = _tile(start, length, side)

        def at(i, j):
            point = {
                **split_index(row, outer, extents),
                **split_index(first + i, crossed, extents),
                **split_index(start + j, inner, extents),
            }
            return scope.simplify(substitute(stage.body, point))

        if not turns:
            return scope.loop(high, lambda i: scope.loop(wide, lambda j: at(i, j), "j"), "i")
        turned, lines = (scratch([side, side], dtype, name) for name in ("turned", "lines"))

        def leave(i, j):
            stored = at(i, j)
            return store(stored.buffer, lines[i, j], *stored.indices)

        def compute(j):
            return scope.line(high, vector, lambda i: store(turned, at(i, j).value, j, i), "i")

        computed = scope.loop(wide, compute, "j")
        left = scope.loop(high, lambda i: scope.line(wide, params.lanes, lambda j: leave(i, j), "j"), "i")
        return allocate([turned, lines], block(computed, turn(turned, lines, side, params.lanes, scope), left))

    return scope.tasks(rows * down * across, choice.tasks, task, "tile")


def _tile(number, length: int, side: int) -> tuple:
    """Return (first, length) of a tile of a line; the last one ends with the line and computes some elements again."""
    first = number * side if length % side == 0 else tirx.min(number * side, index(max(0, length - side)))
    return first, min(length, side)
