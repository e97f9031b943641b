# SPDX-License-Identifier: Apache-2.0
"""LowerArgmax: argmax and argmin as two plain reductions, which schedule rules can handle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import tvm
from tvm import ir, relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.rewrite_calls import is_static, rewrite_calls

# Operator -> the reduction that finds the value, and whether an element is that value or beyond.
_KINDS = {
    ir.Op.get("relax.argmax"): (relax.op.max, lambda element, extreme: element >= extreme),
    ir.Op.get("relax.argmin"): (relax.op.min, lambda element, extreme: element <= extreme),
}


@tvm.transform.module_pass(opt_level=0, name="smartmem.LowerArgmax")
class LowerArgmax:
    """Find the extreme first, then the first place where it is.

    Before::

        y = argmax(x, axis=-1)                                     # also argmin, along any axis, or all

    After::

        m[r] = max over j: x[r, j]
        p[r] = min over j: j if x[r, j] >= m[r] else n
        y[r] = p[r] if p[r] < n else 0                             # all are minus infinity, or NaN

    For GPUs, where only the catch-all rules take a reduction to a pair. If all elements are the least number of their
    type, the result is the first place; TVM 0.27 gives -1. Refused are symbolic shapes and booleans.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Lowering(mod))


@mutator
class _Lowering(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        kind = _KINDS.get(call.op) if isinstance(call.op, ir.Op) else None
        if kind is None or not is_static(call.args[0].ty) or str(call.args[0].ty.dtype) == "bool":
            return call
        find, reaches = kind
        x, emit = call.args[0], self.builder_.emit
        if call.attrs.axis is None:
            x = emit(relax.op.reshape(x, [prod(map(int, x.ty.shape))]))
        axis = int(call.attrs.axis or 0) % x.ty.ndim
        extreme = emit(find(x, axis, keepdims=True))
        first = partial(_first, axis, reaches, str(call.ty.dtype))
        place = self.builder_.emit_te(first, x, extreme, primfunc_name_hint="first_place")
        return emit(relax.op.reshape(place, call.ty.shape))


def _first(axis: int, reaches: Callable, dtype: str, x: te.Tensor, extreme: te.Tensor) -> te.Tensor:
    """Return the first place along `axis` that reaches `extreme` (of size 1 there); 0 if none does."""
    length = x.shape[axis]
    j = te.reduce_axis((0, length), "j")

    def place(*at):
        here = (*at[:axis], j, *at[axis + 1 :])
        reached = reaches(x(*here), extreme(*at))
        return te.min(tirx.Select(reached, tirx.Cast(dtype, j), tirx.Cast(dtype, length)), axis=j)

    found = te.compute(extreme.shape, place, "first_place")
    none = tirx.const(0, dtype)
    return te.compute(
        extreme.shape, lambda *at: tirx.Select(found(*at) < tirx.Cast(dtype, length), found(*at), none), "place"
    )
