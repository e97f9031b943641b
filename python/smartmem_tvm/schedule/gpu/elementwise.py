# SPDX-License-Identifier: Apache-2.0
"""Element-wise, gathering and data-movement kernels on a GPU: neighbouring threads write neighbouring elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import ir, sym, tirx

from ...ir.kernel import Kernel, Stage, substitute
from ...ir.texels import is_texture, writes_texels
from ...ir.vectorized import accesses_to_booleans
from ...planner.texture_form import TEXEL
from ..core.decisions import decide, declined
from ..core.expressions import Walk, accesses_of, has_select, memory_order, split_index
from ..core.nest import UNROLL, VECTOR, Scope, block, fresh, index
from .launch import GpuParams, GpuRule, launch
from .machine import WARP
from .vectors import computed_types

_MOST_EACH = 4  # elements of a thread. Chosen: no times of more were kept (2026-11-21)


@dataclass(frozen=True)
class ElementwiseTile:
    """Elements of a thread's vector, threads of a thread block, and iterations of a thread."""

    vector: int
    threads: int
    each: int


_Plan = tuple[Stage, Sequence, ElementwiseTile]


class GpuElementwise(GpuRule):
    """The rule for kernels of one stage that does not reduce."""

    def plan(self, kernel: Kernel, params: GpuParams) -> _Plan | None:
        """Return the stage, the order of its elements, and the tile; None if it reduces or has several stages."""
        stage = kernel.stages[0]
        if len(kernel.stages) > 1:
            return declined(f"{len(kernel.stages)} stages that do not fold into one")
        if stage.reduction or not isinstance(stage.body, tirx.BufferStore):
            return declined("it reduces")
        order = memory_order(stage.spatial, stage.extents, stage.body.buffer, stage.body.indices)
        total = prod(stage.extents.values())
        vector = TEXEL if writes_texels(kernel) else _vector(stage, order, total, params)
        units = -(-total // vector)
        most = params.limits.work_group
        threads = min(params.elementwise_threads, most, -(-units // WARP) * WARP)
        each = max(1, min(_MOST_EACH // vector, units // params.busy_threads))
        facts = {"total": total, "vector": vector, "threads": most, "texels": writes_texels(kernel)}
        return stage, order, decide("gpu_elementwise", ElementwiseTile(vector, threads, each), **facts)

    def emit(self, plan: _Plan) -> tirx.Stmt:
        """Return the whole loop nest."""
        stage, order, tile = plan
        units = -(-prod(stage.extents.values()) // tile.vector)
        return _nest(stage, order, units, tile.vector, tile.threads, tile.each)


def _vector(stage: Stage, order: list, total: int, params: GpuParams) -> int:
    """Return the vector length: 16 bytes if every processor still gets a thread block, else the target's vector."""
    limits, buffers = params.limits, [buffer for buffer, _ in accesses_of(stage)]
    wide = limits.vector_of((str(buffer.dtype) for buffer in buffers), computed_types(stage.body.value))
    enough = total >= wide * params.elementwise_threads * limits.processors
    widths = (wide, limits.vector) if enough and not any(map(is_texture, buffers)) else (limits.vector,)
    return next((width for width in widths if _goes_in_vectors(stage, order, total, width)), 1)


def _goes_in_vectors(stage: Stage, order: list, total: int, width: int) -> bool:
    """Whether each aligned vector of elements is written as a vector, and read as a vector or as one value."""
    if width == 1 or total % width or has_select(stage.body) or accesses_to_booleans(stage.body):
        return False
    number, within = fresh("number"), fresh("within")
    place = split_index(number * index(width) + within, order, stage.extents)
    walk = Walk({number: total // width, within: width})
    for buffer, indices in accesses_of(stage):
        at = [substitute(i, place) for i in indices]
        stride = walk.stride(buffer, at, within)
        written = buffer.same_as(stage.body.buffer)
        if stride == 0 and not written:
            continue
        if stride != 1 or not _is_aligned(walk.offset(buffer, at), number, within, total, width):
            return False
    return True


def _is_aligned(offset, number, within, total: int, width: int) -> bool:
    analyzer = sym.Analyzer()
    analyzer.bind(number, ir.Range(0, total // width))
    first = substitute(offset, {within: index(0)})
    return analyzer.can_prove_equal(first % width, 0)


def _nest(stage: Stage, order: list, units: int, vector: int, threads: int, each: int) -> tirx.Stmt:
    scope, place = Scope(), fresh("unit")
    scope.analyzer.bind(place, ir.Range(index(0), index(units)))

    def element(flat) -> tirx.Stmt:
        return scope.simplify(substitute(stage.body, split_index(flat, order, stage.extents)))

    def at(unit) -> tirx.Stmt:
        if vector == 1:
            return element(unit)

        # The analyzer proves that a vector lies within a row for one variable, not for the sum that `unit` is.
        def lane(j) -> tirx.Stmt:
            return scope.simplify(substitute(element(place * index(vector) + j), {place: unit}))

        return scope.loop(vector, lane, "j", VECTOR)

    def thread(number, t) -> tirx.Stmt:
        first = number * (threads * each) + t

        def turn(i) -> tirx.Stmt:
            unit = first + i * index(threads)
            body = at(unit)
            return body if units % (threads * each) == 0 else tirx.IfThenElse(unit < units, body, None)

        return block(scope.loop(each, turn, "i", UNROLL))

    return launch(scope, -(-units // (threads * each)), threads, thread)
