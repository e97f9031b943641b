# SPDX-License-Identifier: Apache-2.0
"""MendScans: running sums that do not depend on how many threads of a GPU walk in step."""

from __future__ import annotations

import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

_CUMSUM = ir.Op.get("relax.cumsum")


@tvm.transform.module_pass(opt_level=0, name="smartmem.MendScans")
class MendScans:
    """Add a last axis of one element to what is summed along its last axis.

    Before::

        y = cumsum(x, axis=-1)                                   # x: (4, 33)

    After::

        y = squeeze(cumsum(expand_dims(x, -1), axis=-2), -1)

    For sums along the last axis, and for no others, TVM 0.27's ``DispatchSortScan`` takes a kernel in which 32 threads
    read what their neighbours have just written, with no barrier in between: wrong on every device whose threads do
    not all walk in step (PoCL: the largest error is several times the largest sum).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        mender = _Mender(mod)
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mender.builder_.update_func(name, mender.visit_expr(func))
        return mender.builder_.get()


@mutator
class _Mender(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not isinstance(call.op, ir.Op) or call.op != _CUMSUM or call.attrs.axis is None:
            return call
        axis, last = int(call.attrs.axis), call.args[0].ty.ndim - 1
        if axis not in (-1, last):
            return call
        column = self.builder_.emit(relax.op.expand_dims(call.args[0], -1))
        summed = self.builder_.emit(relax.op.cumsum(column, last, call.attrs.dtype, call.attrs.exclusive))
        return relax.op.squeeze(summed, [-1])
