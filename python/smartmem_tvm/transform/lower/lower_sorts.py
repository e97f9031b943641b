# SPDX-License-Identifier: Apache-2.0
"""LowerSorts: topk, sort and argsort by counting, as reductions that schedule rules can handle."""

from __future__ import annotations

from math import prod

import tvm
from tvm import ir, relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.rewrite_calls import is_static, rewrite_calls

_TOPK, _SORT, _ARGSORT = (ir.Op.get(f"relax.{name}") for name in ("topk", "sort", "argsort"))
_MOST_COMPARED = 1 << 28  # comparisons; beyond them, sorting by merging is less work


@tvm.transform.module_pass(opt_level=0, name="smartmem.LowerSorts")
class LowerSorts:
    """Find the place of each element by counting how many come before it; no element waits for another one.

    Before::

        y = topk(x, k, axis=-1)                       # also sort, argsort; along any axis

    After::

        place[r, i]  = sum over j: x[r, j] comes before x[r, i]
        value[r, p]  = sum over i: x[r, i] if place[r, i] == p else 0         # p < k
        index[r, p]  = sum over i: i if place[r, i] == p else 0

    Equal elements keep their order. NaN is larger than any number. For GPUs, where TVM 0.27 sorts by merging, launch
    after launch; the rows that networks sort are short, and comparisons cost little beside the launches.
    Refused are symbolic shapes, booleans, and more than 2^28 comparisons.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Lowering(mod))


@mutator
class _Lowering(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op not in (_TOPK, _SORT, _ARGSORT) or not _is_known(call.args[0].ty, int(call.attrs.axis)):
            return call
        x, axis = call.args[0], int(call.attrs.axis) % call.args[0].ty.ndim
        rows = self._turned(x, axis)
        largest_first = bool(call.attrs.largest if call.op == _TOPK else call.attrs.descending)
        place = self.builder_.emit_te(_places, rows, largest_first, primfunc_name_hint="places")
        length = int(rows.ty.shape[-1])
        count = min(int(call.attrs.k), length) if call.op == _TOPK and int(call.attrs.k) > 0 else length
        results = [
            self._turned(
                self.builder_.emit_te(_at_places, place, rows, count, dtype, primfunc_name_hint="at_places"), axis
            )
            for dtype in _wanted(call)
        ]
        return results[0] if len(results) == 1 else relax.Tuple(results)

    def _turned(self, x: relax.Expr, axis: int) -> relax.Expr:
        """Return `x` with this axis and the last one exchanged."""
        order = list(range(x.ty.ndim))
        order[axis], order[-1] = order[-1], order[axis]
        return x if axis == x.ty.ndim - 1 else self.builder_.emit(relax.op.permute_dims(x, order))


def _is_known(ty: relax.TensorType, axis: int) -> bool:
    if not is_static(ty) or str(ty.dtype) == "bool":
        return False
    return prod(map(int, ty.shape)) * int(ty.shape[axis]) <= _MOST_COMPARED


def _wanted(call: relax.Call) -> list[str | None]:
    """Return, for each result, the type of the indices that it holds, or None for values."""
    if call.op == _TOPK:
        indices = str(call.attrs.dtype)
        return {"both": [None, indices], "values": [None], "indices": [indices]}[str(call.attrs.ret_type)]
    return [str(call.attrs.dtype)] if call.op == _ARGSORT else [None]


def _places(x: te.Tensor, largest_first: bool) -> te.Tensor:
    """Return, for each element of a row, the number of elements that come before it."""
    j = te.reduce_axis((0, x.shape[-1]), "j")

    def place(*at):
        *row, i = at
        mine, other = x(*at), x(*row, j)
        first, second = (other, mine) if largest_first else (mine, other)
        earlier = tirx.all(j < i, _equals(mine, other))
        return te.sum(tirx.Cast("int32", tirx.any(_exceeds(first, second), earlier)), axis=j)

    return te.compute(x.shape, place, "place")


# Negations are unsafe here: TVM simplifies not (a > b) to a <= b, which is wrong of NaN.
def _exceeds(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    if "float" not in str(a.ty.dtype):
        return a > b
    return tirx.any(a > b, tirx.all(tirx.isnan(a), tirx.Not(tirx.isnan(b))))


def _equals(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    if "float" not in str(a.ty.dtype):
        return a == b
    return tirx.any(a == b, tirx.all(tirx.isnan(a), tirx.isnan(b)))


def _at_places(place: te.Tensor, x: te.Tensor, count: int, index_type: str | None) -> te.Tensor:
    """Return the first `count` elements of each row in sorted order, or their indices."""
    i = te.reduce_axis((0, x.shape[-1]), "i")

    def found(*at):
        *row, p = at
        value = x(*row, i) if index_type is None else tirx.Cast(index_type, i)
        return te.sum(tirx.Select(place(*row, i) == p, value, tirx.const(0, index_type or x.dtype)), axis=i)

    return te.compute([*x.shape[:-1], count], found, "found")
