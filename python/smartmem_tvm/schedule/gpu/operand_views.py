# SPDX-License-Identifier: Apache-2.0
"""Rewrite a sum of products into the form that TVM's matmul rule accepts: each operand is read at plain iterators.

    C[b, i, j] += A[f(b, i), k // 32, k % 32] * B[g(k, j)]

    L[b, i, k] = A[f(b, i), k // 32, k % 32];  R[k, j] = B[g(k, j)];  C[b, i, j] += L[b, i, k] * R[k, j]

No view is stored: the rule folds the views into its copies of tiles to shared memory.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from ...ir.kernel import Kernel, Opaque, Stage, emit, parse
from ...ir.walk import loads
from ..core.expressions import uses
from ..core.nest import fresh
from ..core.reduction import combiner_of

NAMES = ("left_view", "right_view")


def with_views(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return `func` with a view of each operand of its matmul; None unless it has one matmul, with rows and columns."""
    try:
        kernel = parse(func)
    except Opaque:
        return None
    reducing = [stage for stage in kernel.stages if stage.reduction]
    if len(reducing) != 1:
        return None
    found = _split(reducing[0])
    if found is None:
        return None
    position = kernel.stages.index(reducing[0])
    stages = (*kernel.stages[:position], *found, *kernel.stages[position + 1 :])
    return emit(Kernel(kernel.inputs, kernel.outputs, stages), dict(func.attrs))


def _split(stage: Stage) -> tuple[Stage, Stage, Stage] | None:
    """Return the two views and the matmul that reads them."""
    combine, term = combiner_of(stage) or (None, None)
    if not isinstance(term, tirx.Mul) or not isinstance(combine(fresh("a"), fresh("b")), tirx.Add):
        return None
    sides = (term.a, term.b)
    used = [uses(side, [it.var for it in stage.iters]) for side in sides]
    rows, columns = ([v for v in mine if v not in theirs] for mine, theirs in (used, used[::-1]))
    if not rows or not columns or not all(loads(side) for side in sides):
        return None
    if any(v in stage.reduction for v in (*rows, *columns)):
        return None
    views = [_view(stage, *each) for each in zip(NAMES, sides, used, strict=True)]
    product = views[0].outputs[0][tuple(used[0])] * views[1].outputs[0][tuple(used[1])]
    own = next(load for load in loads(stage.body) if load.source.same_as(stage.outputs[0]))
    body = tirx.BufferStore(stage.body.buffer, own + product, stage.body.indices)
    return (*views, replace(stage, body=body))


def _view(stage: Stage, name: str, value, used: list) -> Stage:
    iters = tuple(tirx.IterVar(it.dom, it.var, 0) for it in stage.iters if it.var in used)
    buffer = tirx.decl_buffer([it.dom.extent for it in iters], value.ty.dtype, name)
    return Stage(name, iters, tirx.BufferStore(buffer, value, [it.var for it in iters]))
