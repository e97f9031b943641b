# SPDX-License-Identifier: Apache-2.0
"""LowerScatters: a scatter to a known box of a tensor becomes a choice between two tensors."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np
import tvm
from tvm import ir, relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.index_map import flat_index, unflatten
from ...ir.rewrite_calls import is_static, rewrite_calls

_SCATTER = ir.Op.get("relax.scatter_nd")


@tvm.transform.module_pass(opt_level=0, name="smartmem.LowerScatters")
class LowerScatters:
    """Choose each element from what is written to a box of a tensor, or from the tensor.

    Before, as exporters write ``x[:, 1:] = u``::

        y = scatter_nd(x, indices, u)                              # indices: a constant, one row for each element of u

    After::

        y[i, j] = u[i, j - 1] if j >= 1 else x[i, j]

    TVM's loop writes one element after the other on one core, at places unknown to schedules: a third of MViTv2's time.
    Refused are indices that are no constant or no box (a range with a step in each dimension, in order), updates that
    are added or multiplied, and symbolic shapes.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Lowering(mod))


@mutator
class _Lowering(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not call.op.same_as(_SCATTER) or str(call.attrs.reduction) != "update":
            return call
        data, indices, updates = call.args
        if not isinstance(indices, ir.Constant) or not all(is_static(each.ty) for each in (data, updates)):
            return call
        box = _box(indices.value.numpy(), [int(dim) for dim in data.ty.shape])
        if box is None:
            return call
        return self.builder_.emit_te(partial(_chosen, box), data, updates, primfunc_name_hint="scatter")


def _box(indices: np.ndarray, shape: list[int]) -> list[range] | None:
    """Return the range of each indexed dimension if the rows of `indices` are all places of a box in order."""
    rows = indices.reshape(-1, indices.shape[-1]).astype("int64")
    if not rows.size:
        return None
    rows = np.where(rows < 0, rows + shape[: rows.shape[1]], rows)
    ranges = []
    for column in rows.T:
        places = np.unique(column)
        step = int(places[1] - places[0]) if len(places) > 1 else 1
        ranges.append(range(int(places[0]), int(places[-1]) + 1, step))
    if prod(map(len, ranges)) != len(rows):
        return None
    places = np.stack(np.meshgrid(*ranges, indexing="ij"), -1).reshape(rows.shape)
    return ranges if np.array_equal(places, rows) else None


def _chosen(box: list[range], data: te.Tensor, updates: te.Tensor) -> te.Tensor:
    """Return `updates` within the box and `data` around it; `updates` may index the box with any dimensions."""
    inner = [int(dim) for dim in data.shape[len(box) :]]
    outer, sizes = [int(dim) for dim in updates.shape[: len(updates.shape) - len(inner)]], [*map(len, box)]

    def one(*at):
        place = [tirx.floordiv(i - each.start, each.step) for i, each in zip(at, box, strict=False)]
        inside = [
            part for i, each, size in zip(at, box, data.shape, strict=False) for part in _within(i, each, int(size))
        ]
        if outer != sizes:  # flattened, or with dimensions of one element
            place = unflatten(flat_index(place, sizes), outer)
        value = updates(*place, *at[len(box) :])
        return tirx.if_then_else(tirx.all(*inside), value, data(*at)) if inside else value

    return te.compute(data.shape, one, "scatter")


def _within(i, place: range, size: int) -> list:
    """Return the conditions under which an index of a dimension of `size` is in a range."""
    conditions = []
    if place.start > 0:
        conditions.append(i >= place.start)
    if place.stop < size:
        conditions.append(i < place.stop)
    if place.step > 1:
        conditions.append(tirx.floormod(i - place.start, place.step) == 0)
    return conditions
