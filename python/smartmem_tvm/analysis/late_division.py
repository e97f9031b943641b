# SPDX-License-Identifier: Apache-2.0
"""The division of a softmax after the product that it is a factor of."""

from __future__ import annotations

import math
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ..ir.compose import can_reindex, replace_loads
from ..ir.index_map import variables
from ..ir.kernel import SPATIAL, Kernel, Stage, substitute
from .row_chain import factors, summand


def divide_late(kernel: Kernel) -> Kernel:
    """Rewrite ``sum_j (e[j] / t) * v[j]`` as ``(sum_j e[j] * v[j]) / t`` where that divides fewer numbers.

    This is the distributive law; no quotient of a softmax is larger than its numerator, so nothing overflows.
    """
    for quotient in kernel.stages:
        if isinstance(quotient.body, tirx.BufferStore) and isinstance(quotient.body.value, tirx.Div):
            readers = kernel.readers(quotient.body.buffer)
            stages = _divided_late(quotient, readers[0]) if len(readers) == 1 else None
            if stages is not None:
                others = [s for s in kernel.stages if s is not quotient]
                at = others.index(readers[0])
                kernel = replace(kernel, stages=(*others[:at], *stages, *others[at + 1 :]))
    return kernel


def _divided_late(quotient: Stage, product: Stage) -> tuple[Stage, Stage] | None:
    """Return the product of the numerator, and the division of its result; None if the law does not apply or pay."""
    numerator, divisor = quotient.body.value.a, quotient.body.value.b
    points = math.prod(quotient.extents.values())
    results = math.prod(product.extents[v] for v in product.spatial)
    if (
        not (quotient.is_pointwise and isinstance(numerator, ir.TensorLoad) and can_reindex(product))
        or results >= points
    ):
        return None
    term, buffer = summand(product), quotient.body.buffer
    reads = [load for load in product.loads if load.source.same_as(buffer)]
    if term is None or len(reads) != 1 or not any(f.same_as(reads[0]) for f in factors(term)):
        return None
    point = dict(zip(quotient.spatial, reads[0].indices, strict=True))
    shared = substitute(divisor, point)
    if any(v in product.reduction for v in variables(shared)):
        return None
    summed = _writing_to(replace_loads(product, buffer, lambda _: substitute(numerator, point)), f"{buffer.name}_sum")
    fresh_vars = {v: tirx.Var(v.name, v.ty) for v in product.spatial}
    iters = tuple(tirx.IterVar(it.dom, fresh_vars[it.var], SPATIAL) for it in product.iters if it.var in fresh_vars)
    place = [substitute(i, fresh_vars) for i in product.body.indices]
    value = summed.body.buffer[tuple(place)] / substitute(shared, fresh_vars)
    return summed, Stage(quotient.name, iters, tirx.BufferStore(product.body.buffer, value, place))


def _writing_to(stage: Stage, name: str) -> Stage:
    """Return the reduction with a new result buffer, `name`."""
    old = stage.body.buffer
    new = tirx.decl_buffer(old.shape, old.dtype, name)

    def rewrite(node):
        node = tvm_ffi.structural_map(
            node, (ir.TensorLoad, lambda ld: new[tuple(ld.indices)] if ld.source.same_as(old) else ld)
        )
        return tvm_ffi.structural_map(node, (tirx.BufferStore, lambda s: tirx.BufferStore(new, s.value, s.indices)))

    return Stage(stage.name, stage.iters, rewrite(stage.body), rewrite(stage.init), stage.annotations)
