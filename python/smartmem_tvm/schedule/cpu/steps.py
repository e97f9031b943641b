# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers on a CPU: one step after the other; hidden units are lanes of vectors, divided among threads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import ir, s_tir, tirx
from tvm.target import Target

from ..._tvm import mapped
from ...ir.kernel import substitute
from ...ir.walk import collect, contains
from ...target import is_cpu
from ..core.decisions import declined
from ..core.expressions import largest_divisor, split_index
from ..core.nest import UNROLL, VECTOR, Scope, allocate, fresh, index, index_type, scratch
from ..core.nest import block as block_of
from ..core.rule import FinishedSchedule, Rule
from ..core.steps import has_steps, nest_by_nest, points_of
from ..core.words import dots_in_vectors
from .machine import WORTH_WAKING
from .packed_vectors import sums_of_dots
from .params import CpuParams


class Steps(Rule):
    """The rule for steps that wait for each other, each of them points that do not.

    The last of a nest's loops over points becomes the lanes of vectors. The other points are divided among the threads.
    A thread computes as many of them together as the registers hold sums, so that their common operands are loaded
    once.

    Parameters
    ----------
    params : CpuParams, optional
        By default those of the target.
    """

    def __init__(self, params: CpuParams | None = None):
        self.params = params

    def runs_on(self, target: Target) -> bool:
        """Whether the target is a CPU."""
        return is_cpu(target)

    def apply(self, func: tirx.PrimFunc, target: Target) -> FinishedSchedule | None:
        """Schedule `func`, or return None if the target is no CPU or the kernel has no steps."""
        if not self.runs_on(target) or not isinstance(func.body, s_tir.SBlockRealize) or not has_steps(func):
            return declined("no loop whose steps wait for each other")
        params = self.params or CpuParams.of(target)
        return nest_by_nest(func, lambda nest: dots_in_vectors(_shared(nest, params)))


def _shared(nest: tirx.Stmt, params: CpuParams) -> tirx.Stmt:
    """Return the points of a nest, in as many tasks as there are threads if the work is large enough."""
    extents, inside = points_of(nest)
    if not extents or not isinstance(inside, s_tir.SBlockRealize) or _asked(inside, [*extents][-1:]):
        return nest
    *outer, lane = extents
    with index_type(str(lane.ty.dtype)):
        side, points, scope = _side_by_side(inside, extents, params), prod(extents[var] for var in outer), Scope()
        work = points * _stores(inside.block.body)

        def at(number) -> tirx.Stmt:
            u = fresh("u")
            scope.analyzer.bind(u, ir.Range(index(0), index(side)))
            place = split_index(number * index(side) + u, outer, extents)
            values = {var: scope.index(value) for var, value in place.items()}
            axes = [(u, side, UNROLL), (lane, extents[lane], VECTOR)]
            return scope.simplify(_together(inside, values, axes, params))

        return scope.tasks(points // side, params.cores if work >= WORTH_WAKING else 1, at)


def _side_by_side(inside: s_tir.SBlockRealize, extents: dict, params: CpuParams) -> int:
    """Return the number of adjacent points of the outer loops that are computed together.

    The points form a box: the number divides the extent of the innermost outer loop, or is that extent times a divisor
    of the next one's.
    """
    *outer, lane = extents
    vectors = -(-extents[lane] // params.lanes) * sum(prod(map(int, each.shape)) for each in _sums(inside.block))
    if not outer or not vectors or _asked(inside, outer):
        return 1
    most = max(1, params.registers * 3 // 4 // vectors)
    first = largest_divisor(extents[outer[-1]], most)
    if first < extents[outer[-1]] or len(outer) == 1:
        return first
    return first * largest_divisor(extents[outer[-2]], most // first)


def _sums(block: s_tir.SBlock) -> list:
    """Return the local buffers that loops write: their sums. What is only written between loops may leave registers."""
    stores = [each for loop in collect(block.body, tirx.For) for each in collect(loop, tirx.BufferStore)]
    return [own for own in block.alloc_buffers if any(own.same_as(each.buffer) for each in stores)]


def _asked(inside: s_tir.SBlockRealize, variables: Sequence) -> bool:
    """Whether a condition or the extent of a loop in the block depends on one of these loop variables."""
    pairs = zip(inside.block.iter_vars, inside.iter_values, strict=True)
    those = [it.var for it, value in pairs if any(value.same_as(each) for each in variables)]
    asked = [each.condition for each in collect(inside.block.body, tirx.IfThenElse)]
    asked += [each.extent for each in collect(inside.block.body, tirx.For)]
    return any(contains(expr, ir.Var, lambda var: any(var.same_as(each) for each in those)) for expr in asked)


def _together(inside: s_tir.SBlockRealize, values: dict, axes: Sequence[tuple], params: CpuParams) -> tirx.Stmt:
    """Return a block for all points of `axes` (variable, extent, kind of loop), statement by statement.

    Each statement has loops of its own, because TVM's vectorizer does not give each lane its own copy of a buffer that
    is allocated in a loop. Such buffers get further axes here.
    """
    block = inside.block
    sizes, variables = [extent for _, extent, _ in axes], [var for var, _, _ in axes]
    own = [(each, scratch([*map(int, each.shape), *sizes], each.dtype, each.name)) for each in block.alloc_buffers]

    def wide(buffer):
        return next((each for narrow, each in own if narrow.same_as(buffer)), None)

    def load(each: ir.TensorLoad):
        buffer = wide(each.source)
        return each if buffer is None else tirx.BufferLoad(buffer, [*each.indices[:], *variables])

    def store(each: tirx.BufferStore):
        buffer = wide(each.buffer)
        if buffer is not None:
            each = tirx.BufferStore(buffer, each.value, [*each.indices[:], *variables])
        *outer, (lane, count, _) = axes
        dots = sums_of_dots(each, lane, count, params)
        each = each if dots is None else block_of(*dots)
        for var, extent, kind in reversed(axes if dots is None else outer):
            new = fresh(var.name)
            each = tirx.For(new, index(0), index(extent), kind, substitute(each, {var: new}))
        return each

    pairs = zip(block.iter_vars, inside.iter_values, strict=True)
    body = substitute(substitute(block.body, {it.var: value for it, value in pairs}), values)
    return allocate([each for _, each in own], mapped(body, (ir.TensorLoad, load), (tirx.BufferStore, store)))


def _stores(stmt: tirx.Stmt) -> int:
    """Return the number of stores that a statement runs."""
    if isinstance(stmt, tirx.For):
        return int(stmt.extent) * _stores(stmt.body)
    if isinstance(stmt, tirx.SeqStmt):
        return sum(map(_stores, stmt.seq))
    if isinstance(stmt, tirx.IfThenElse):
        return _stores(stmt.then_case) + (_stores(stmt.else_case) if stmt.else_case else 0)
    return 1
