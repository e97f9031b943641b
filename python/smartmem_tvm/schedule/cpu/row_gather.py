# SPDX-License-Identifier: Apache-2.0
"""Gather a row that is scattered in memory once, in front of the stages that read it.

    s[i] += cat(a, b)[i, k];  o[i, j] = cat(a, b)[i, j] - s[i]
    ->
    r[i, j] = cat(a, b)[i, j];  s[i] += r[i, k];  o[i, j] = r[i, j] - s[i]

Normalisations read their input two or three times. If each read needs a select, a gather, or ``//`` and ``%`` along the
row (merged patches, summed embeddings), one copy into a row-sized buffer lets the stages be vectorised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ...ir.kernel import SPATIAL, Kernel, Stage, substitute
from ...ir.walk import loads
from ..core.expressions import Walk, has_select, replace_loads
from ..core.nest import fresh, index
from ..core.reduction import combiner_of
from ..core.row_space import RowSpace, row_space_of

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)


def gather_rows(space: RowSpace) -> RowSpace:
    """Return the rows with a copy in front of each scattered operand that two or more stages read."""
    gathered: list[_Gathered] = []
    stages = [_rewrite(space, stage, gathered) for stage in space.kernel.stages]
    kept = [g for g in gathered if g.readers > 1]
    if not kept:
        return space
    stages = [_restore(stage, [g for g in gathered if g.readers == 1]) for stage in stages]
    kernel = Kernel(space.kernel.inputs, space.kernel.outputs, (*(g.stage for g in kept), *stages))
    return row_space_of(kernel) or space


class _Gathered:
    """One operand: its value in canonical variables, the buffer of its copy, and the number of stages that read it."""

    def __init__(self, value, variables: list, extents: list[int]):
        self.value, self.variables, self.readers = value, variables, 1
        shape = [index(e) for e in extents]
        self.buffer = tirx.decl_buffer(shape, value.ty.dtype, "row", layout=None)
        iters = tuple(tirx.IterVar(ir.Range(index(0), e), v, SPATIAL) for v, e in zip(variables, shape, strict=True))
        self.stage = Stage("gather", iters, tirx.BufferStore(self.buffer, value, variables))


def _rewrite(space: RowSpace, stage: Stage, gathered: list[_Gathered]) -> Stage:
    rows = space.rows_of(stage)
    inner = [v for v in stage.extents if v not in rows and stage.extents[v] > 1]
    if len(inner) != 1 or any(stage.extents[v] == 1 for v in stage.extents):
        return stage
    variables = [*rows, inner[0]]
    extents = [stage.extents[v] for v in variables]
    seen: set = set()

    def take(value):
        canonical = [fresh(f"r{n}") for n in range(len(variables))]
        for known in gathered:
            there = substitute(value, dict(zip(variables, known.variables, strict=True)))
            same_shape = [int(d) for d in known.buffer.shape] == extents
            if same_shape and tvm_ffi.structural_equal(there, known.value):
                break
        else:
            known = _Gathered(substitute(value, dict(zip(variables, canonical, strict=True))), canonical, extents)
            known.readers = 0
            gathered.append(known)
        if known not in seen:
            known.readers += 1
            seen.add(known)
        return known.buffer[tuple(variables)]

    def scattered(value) -> bool:
        return _is_input(space, value) and _is_scattered(value, stage, inner[0])

    if stage.reduction:
        combine, term = combiner_of(stage)
        own = stage.body.buffer[tuple(stage.body.indices)]
        value = combine(own, _replace(term, scattered, take))
    else:
        value = _replace(stage.body.value, scattered, take)
    return replace(stage, body=tirx.BufferStore(stage.body.buffer, value, list(stage.body.indices))) if seen else stage


def _replace(value, wanted: Callable, take: Callable):
    """Return `value` with its largest `wanted` subexpressions replaced by `take`."""
    if wanted(value):
        return take(value)
    if isinstance(value, _ARITHMETIC):
        return type(value)(_replace(value.a, wanted, take), _replace(value.b, wanted, take))
    return value


def _is_input(space: RowSpace, value) -> bool:
    """Whether the value reads tensors, none of them from another stage."""
    sources = [load.source for load in loads(value)]
    return bool(sources) and not any(s.same_as(b) for s in sources for b in space.kernel.intermediates)


def _is_scattered(value, stage: Stage, inner) -> bool:
    if has_select(value):
        return True
    walk = Walk(stage.extents)
    return any(walk.load_stride(load, inner) is None for load in loads(value))


def _restore(stage: Stage, unused: list[_Gathered]) -> Stage:
    """Return a stage with the operands restored that only one stage reads."""

    def value_at(load):
        for known in unused:
            if load.source.same_as(known.buffer):
                return substitute(known.value, dict(zip(known.variables, load.indices, strict=True)))
        return None

    return replace(stage, body=replace_loads(stage.body, value_at))
