# SPDX-License-Identifier: Apache-2.0
"""DropEmpty: remove operators that write or read tensors without elements."""

from __future__ import annotations

from math import nan

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..errors import UserError
from ..ir.rewrite_calls import rewrite_calls

# The result of a reduction over no elements.
_NOTHING = {
    **dict.fromkeys(("sum", "matmul", "einsum", "nn.conv1d", "nn.conv2d", "nn.conv3d"), 0),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), 0),
    "prod": 1,
    "mean": nan,
    "variance": nan,
    "std": nan,
}
# Operators that write a part of their first operand: an empty part leaves the operand as it is.
_UPDATES = ("scatter_elements", "scatter_nd", "index_put", "slice_scatter")


@tvm.transform.module_pass(opt_level=0, name="smartmem.DropEmpty")
class DropEmpty:
    """Write the result of an operator without work as a constant.

    Before::

        e = strided_slice(x, [1], [5], [9])                        # (3, 4) -> (3, 0)
        y = concat([x, e], 1)
        z = sum(e, 1)

    After::

        y = x
        z = zeros                                                   # (3,)

    A tensor with a dimension of 0 needs no kernel, and TVM divides by its dimensions. A sum over no elements is 0, a
    product 1, and a mean NaN. Refused are other operators with elements in their result but none in their operands,
    such as a maximum.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`.

        Raises
        ------
        UserError
            If an operator's result is undefined.
        """
        return rewrite_calls(mod, _Lowering(mod)) if _mentions_empty(mod) else mod


def _mentions_empty(mod: tvm.IRModule) -> bool:
    found: list = []

    def look(expr: relax.Expr) -> None:
        if isinstance(expr, ir.Call | ir.Constant | ir.Var) and _is_empty(expr.ty):
            found.append(expr)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, look)
    return bool(found)


def _is_empty(ty) -> bool:
    """Whether a type, or one of its fields, has a dimension of 0."""
    if isinstance(ty, relax.TupleType):
        return any(map(_is_empty, ty.fields))
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    dims = shape.values if isinstance(shape, relax.ShapeExpr) else ()
    return any(isinstance(dim, tirx.IntImm) and int(dim) == 0 for dim in dims)


@mutator
class _Lowering(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = call.op.name.removeprefix("relax.") if isinstance(call.op, ir.Op) else ""
        made = _constant(call.ty)
        if made is not None:
            return made
        if name == "split" and _is_empty(call.ty):
            return self._slices(call)
        operands = [each for arg in call.args for each in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
        if not any(_is_empty(each.ty) for each in operands):
            return call
        if name == "shape_of":
            return call.args[0].ty.shape
        if name == "concat":
            return self._concat(call)
        if name == "nn.batch_norm":  # its running mean and variance are not empty
            return relax.Tuple([_constant(call.ty.fields[0]), *call.args[3:5]])
        if name in _UPDATES and not _is_empty(call.args[0].ty):
            return call.args[0]
        if name == "nn.pad":
            return _full(call.ty, float(call.attrs.pad_value))
        if name in _NOTHING:
            return _full(call.ty, _NOTHING[name])
        raise UserError(
            f"Operator {name or 'call'} makes a tensor of shape {_text(call.ty)} of one without elements, which is not "
            f"defined: give the model inputs for which no dimension is 0."
        )

    def visit_tuple_getitem_(self, item: ir.TupleGetItem) -> relax.Expr:
        made = _constant(item.ty)
        return made if made is not None else super().visit_tuple_getitem_(item)

    def _slices(self, call: relax.Call) -> relax.Expr:
        """Return the parts of a split one by one, where some are empty."""
        axis, fields, start = int(call.attrs.axis) % call.args[0].ty.ndim, [], 0
        for part in call.ty.fields:
            end = start + int(part.shape[axis])
            empty = _constant(part)
            whole = relax.op.strided_slice(call.args[0], [axis], [start], [end]) if empty is None else empty
            fields.append(self.builder_.emit(whole))
            start = end
        return relax.Tuple(fields)

    def _concat(self, call: relax.Call) -> relax.Expr:
        kept = [each for each in call.args[0].fields if not _is_empty(each.ty)]
        return kept[0] if len(kept) == 1 else relax.op.concat(kept, call.attrs.axis)


def _constant(ty) -> relax.Expr | None:
    """Return the only value of a type whose tensors are all empty."""
    if isinstance(ty, relax.TupleType):
        fields = [_constant(each) for each in ty.fields]
        return relax.Tuple(fields) if fields and None not in fields else None
    if not isinstance(ty, relax.TensorType) or not _is_empty(ty):
        return None
    # Not a constant: TVM cannot load a constant without elements.
    return relax.op.builtin.alloc_tensor(ty.shape, str(ty.dtype.dtype), 0)


def _full(ty: relax.TensorType, value: float) -> relax.Expr:
    dtype, shape = str(ty.dtype.dtype), [int(dim) for dim in ty.shape]
    return relax.const(np.full(shape, value).astype(dtype), dtype)


def _text(ty: relax.TensorType | relax.TupleType) -> str:
    if isinstance(ty, relax.TupleType):
        return " and ".join(map(_text, ty.fields))
    return "(" + ", ".join(str(getattr(dim, "value", dim)) for dim in ty.shape) + ")"
