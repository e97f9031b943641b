# SPDX-License-Identifier: Apache-2.0
"""Split iterators that hide a row: channel ``c`` belongs to row ``c // 4`` of a group normalisation.

out[c, i] = x[c, i] - mean[c // 4]   ->   out[g * 4 + d, i] = x[g * 4 + d, i] - mean[g]
"""

from __future__ import annotations

from dataclasses import replace

from tvm import ir, tirx

from ....ir.kernel import SPATIAL, Kernel, Stage, substitute
from ....ir.strength_reduction import Simplifier
from ...core.nest import fresh, index


def split_hidden_rows(kernel: Kernel) -> Kernel:
    """Return the kernel with every spatial iterator ``v`` split that indexes an intermediate result as ``v // q``."""
    return replace(kernel, stages=tuple(_split(_simple(stage), kernel) for stage in kernel.stages))


def _simple(stage: Stage) -> Stage:
    """Return the stage with simplified indices, in which a quotient is a plain ``v // q``."""
    return replace(stage, body=Simplifier(stage.extents).body(stage.body))


def _split(stage: Stage, kernel: Kernel) -> Stage:
    for load in stage.loads:
        if not any(load.source.same_as(b) for b in kernel.intermediates):
            continue
        for at in load.indices:
            if isinstance(at, tirx.FloorDiv) and _splits(stage, at.a, at.b):
                return _split(_with_parts(stage, at.a, int(at.b)), kernel)
    return stage


def _splits(stage: Stage, var, size) -> bool:
    if not (isinstance(var, ir.Var) and isinstance(size, tirx.IntImm)):
        return False
    mine = any(var.same_as(v) for v in stage.spatial)
    return mine and stage.extents[var] % int(size) == 0 and int(size) > 1


def _with_parts(stage: Stage, var, size: int) -> Stage:
    outer, inner = fresh(f"{var.name}_group"), fresh(f"{var.name}_in")
    iters: list = []
    for it in stage.iters:
        if it.var.same_as(var):
            sizes = (stage.extents[var] // size, size)
            spans = [ir.Range(index(0), index(n)) for n in sizes]
            iters += [tirx.IterVar(s, v, SPATIAL) for s, v in zip(spans, (outer, inner), strict=True)]
        else:
            iters.append(it)
    simplifier = Simplifier({it.var: int(it.dom.extent) for it in iters})
    body = simplifier.body(substitute(stage.body, {var: outer * index(size) + inner}))
    init = substitute(stage.init, {var: outer * index(size) + inner}) if stage.init is not None else None
    return Stage(stage.name, tuple(iters), body, init, stage.annotations)
