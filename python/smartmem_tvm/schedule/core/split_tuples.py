# SPDX-License-Identifier: Apache-2.0
"""Split a reduction to a tuple into one reduction for each part, where no part reads another one.

(s, q)[i] += (x[i, k], x[i, k] * x[i, k])   ->   s[i] += x[i, k];  q[i] += x[i, k] * x[i, k]
"""

from __future__ import annotations

from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ...ir.kernel import Kernel, Stage
from ...ir.walk import loads


def split_tuples(kernel: Kernel) -> Kernel:
    """Return the kernel with each of these reductions split."""
    stages = tuple(part for stage in kernel.stages for part in _parts(stage))
    return kernel if len(stages) == len(kernel.stages) else replace(kernel, stages=stages)


def _parts(stage: Stage) -> list[Stage]:
    stores, starts = _stores(stage.body), _stores(stage.init)
    if not stage.reduction or len(stores) < 2 or len(stores) != len(starts):
        return [stage]
    for store in stores:
        others = [load for load in loads(store.value) if any(load.source.same_as(b) for b in stage.outputs)]
        if not all(load.source.same_as(store.buffer) for load in others):
            return [stage]
    starts = [next(s for s in starts if s.buffer.same_as(store.buffer)) for store in stores]
    return [_part(stage, n, store, start) for n, (store, start) in enumerate(zip(stores, starts, strict=True))]


def _part(stage: Stage, number: int, store, start) -> Stage:
    fresh = {it.var: tirx.Var(it.var.name, it.var.ty) for it in stage.iters}

    def renamed(node):
        return tvm_ffi.structural_map(node, (ir.Var, lambda v: fresh.get(v, v)))

    iters = tuple(tirx.IterVar(it.dom, fresh[it.var], it.iter_type) for it in stage.iters)
    return Stage(f"{stage.name}_{number}", iters, renamed(store), renamed(start))


def _stores(body) -> list:
    """Return the stores of a body of bindings and stores, with bound values substituted."""
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    bound: dict = {}
    stores = []
    for statement in statements:
        if isinstance(statement, tirx.Bind):
            bound[statement.var] = _with(statement.value, bound)
        elif isinstance(statement, tirx.BufferStore):
            stores.append(_with(statement, bound))
    return stores


def _with(node, bound: dict):
    return tvm_ffi.structural_map(node, (ir.Var, lambda v: bound.get(v, v))) if bound else node
