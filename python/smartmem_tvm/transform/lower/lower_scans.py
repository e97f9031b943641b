# SPDX-License-Identifier: Apache-2.0
"""LowerScans: cumsum and cumprod as plain reductions, which schedule rules can handle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import tvm
from tvm import ir, relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.rewrite_calls import is_static, rewrite_calls

_BLOCK = 256  # elements of a block; each element sums up all elements before it in its block


@dataclass(frozen=True)
class _Combiner:
    """An operation of a scan: its reduction in loops and in Relax, its binary operator, and its neutral element."""

    reduce: Callable
    over_axis: Callable
    together: Callable
    neutral: int


_product = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="product")
_COMBINERS = {
    ir.Op.get("relax.cumsum"): _Combiner(te.sum, relax.op.sum, relax.op.add, 0),
    ir.Op.get("relax.cumprod"): _Combiner(_product, relax.op.prod, relax.op.multiply, 1),
}


@tvm.transform.module_pass(opt_level=0, name="smartmem.LowerScans")
class LowerScans:
    """Let each element of a running sum add up those before it in its block, and the blocks before that; or multiply.

    Before::

        y = cumsum(x, axis=-1)                                       # x: (r, n); along any axis, or all; cumprod

    After::

        y[r, i] = sum over j <= i: x[r, j]                           # j < i for an exclusive sum; n <= 256

        b = reshape(pad(x), (r, n / 256, 256))                       # longer ones
        y = scan(b) + expand_dims(exclusive_scan(sum(b, -1)), -1)    # and so on with the sums

    For GPUs. TVM 0.27 takes two launches for each power of two in `n`. For sums along the last axis it has a kernel in
    which 32 threads read values that their neighbours have just written, without a barrier in between: wrong on every
    device whose threads do not run in lockstep (on PoCL the largest error is several times the largest sum).
    Refused are symbolic shapes.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Lowering(mod))


@mutator
class _Lowering(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        combiner = _COMBINERS.get(call.op) if isinstance(call.op, ir.Op) else None
        if combiner is None or not is_static(call.args[0].ty):
            return call
        x, dtype = call.args[0], str(call.ty.dtype)
        shape = [int(d) for d in x.ty.shape]
        axis = int(call.attrs.axis) % len(shape) if call.attrs.axis is not None else None
        if axis is None:
            x, shape, axis = self._emit(relax.op.reshape(x, [prod(shape)])), [prod(shape)], 0
        if str(x.ty.dtype) != dtype:
            x = self._emit(relax.op.astype(x, dtype))
        order = list(range(len(shape)))
        order[axis], order[-1] = order[-1], order[axis]
        turned = self._emit(relax.op.permute_dims(x, order))
        summed = self._scan(combiner, turned, bool(call.attrs.exclusive))
        return self._emit(relax.op.permute_dims(summed, order))

    def _scan(self, combiner: _Combiner, x: relax.Expr, exclusive: bool) -> relax.Expr:
        """Scan along the last axis."""
        *rows, length = (int(d) for d in x.ty.shape)
        if length <= _BLOCK:
            return self.builder_.emit_te(partial(_running, combiner, exclusive), x, primfunc_name_hint="running")
        blocks = -(-length // _BLOCK)
        widths = [0] * (2 * len(rows) + 1) + [blocks * _BLOCK - length]
        padded = self._emit(relax.op.nn.pad(x, widths, pad_value=combiner.neutral)) if widths[-1] else x
        parts = self._emit(relax.op.reshape(padded, [*rows, blocks, _BLOCK]))
        before = self._scan(combiner, self._emit(combiner.over_axis(parts, -1)), exclusive=True)
        within = self._scan(combiner, parts, exclusive)
        whole = self._emit(combiner.together(within, self._emit(relax.op.expand_dims(before, -1))))
        flat = self._emit(relax.op.reshape(whole, [*rows, blocks * _BLOCK]))
        return self._emit(relax.op.strided_slice(flat, [len(rows)], [0], [length])) if widths[-1] else flat

    def _emit(self, expr: relax.Expr) -> relax.Var:
        return self.builder_.emit(expr)


def _running(combiner: _Combiner, exclusive: bool, x: te.Tensor) -> te.Tensor:
    j = te.reduce_axis((0, x.shape[-1]), "j")

    def total(*at):
        *row, i = at
        counted = j < i if exclusive else j <= i
        return combiner.reduce(tirx.Select(counted, x(*row, j), tirx.const(combiner.neutral, x.dtype)), axis=j)

    return te.compute(x.shape, total, "running")
