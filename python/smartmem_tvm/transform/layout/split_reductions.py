# SPDX-License-Identifier: Apache-2.0
"""SplitReductions: a reduction over a reshaped view becomes one loop per dimension of the view's source."""

from __future__ import annotations

import tvm
from tvm import ir, tirx

from ...analysis.row_chain import row_chain_of
from ...ir.compose import simplified
from ...ir.index_map import divisor_chain
from ...ir.kernel import REDUCE, Kernel, Opaque, Stage, rewrite_stages, substitute


@tvm.transform.module_pass(opt_level=0, name="smartmem.SplitReductions")
class SplitReductions:
    """Turn the ``//`` and ``%`` of a reduction index into loops (SmartMem 3.2.1, the split dependency).

    Before::

        for k in range(768): acc += x[head = k // 64, t, k % 64] * w[k, j]

    After::

        for k0, k1 in grid(12, 64): acc += x[k0, t, k1] * w[k0 * 64 + k1, j]

    The inner loop is contiguous again, and no division is left in it. An iterator is split where its divisors form a
    chain, each dividing the next and the extent; otherwise it stays. The iterators of a chain of rows
    (`analysis.row_chain`), along which one stage hands a row to the next, stay as well.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every unscheduled PrimFunc of `mod`; others are left alone."""
        return rewrite_stages(mod, _split, unless=_is_chain)


def _is_chain(kernel: Kernel) -> bool:
    """Whether stages hand rows to each other: an axis that they share must stay whole to remain shared."""
    if sum(bool(stage.reduction) for stage in kernel.stages) < 2:
        return False
    try:
        chain = row_chain_of(kernel)
    except Opaque:
        return False
    return bool(chain.products and chain.statistics)


def _split(stage: Stage) -> Stage:
    iters, mapping = [], {}
    for it in stage.iters:
        divisors = divisor_chain([stage.body], it.var, stage.extents[it.var])[1:-1] if it.iter_type == REDUCE else []
        parts, value = _digits(it, divisors)
        iters += parts
        if len(parts) > 1:
            mapping[it.var] = value
    if not mapping:
        return stage
    body = substitute(stage.body, mapping)
    init = substitute(stage.init, mapping) if stage.init is not None else None
    return simplified(Stage(stage.name, tuple(iters), body, init, stage.annotations))


def _digits(it, divisors: list[int]) -> tuple[list, object]:
    """Return iterators for the digits of `it` in the mixed radix of `divisors`, and `it` as a sum of them."""
    if not divisors:
        return [it], it.var
    bounds = [*divisors, int(it.dom.extent)]
    parts, value = [], tirx.const(0, it.var.ty.dtype)
    for number, (low, high) in enumerate(reversed(list(zip([1, *divisors], bounds)))):
        var = tirx.Var(f"{it.var.name}_{number}", it.var.ty)
        start, extent = tirx.const(0, it.var.ty.dtype), tirx.const(high // low, it.var.ty.dtype)
        parts.append(tirx.IterVar(ir.Range(start, extent), var, REDUCE))
        value = value + var * tirx.const(low, it.var.ty.dtype)
    return parts, value
