# SPDX-License-Identifier: Apache-2.0
"""Element-wise arithmetic operators, and constants."""

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from smartmem_tvm.frontend.converters.node import Node, dtype_of
from smartmem_tvm.frontend.converters.node import constant as number


def clip(node: Node) -> relax.Expr | None:
    """Clip with constant bounds: ``minimum(high, maximum(low, x))``.

    A missing bound, or an infinite one, does not clip. NaN, which ONNX leaves open, behaves as in ONNX Runtime: a NaN
    bound does not clip, and a NaN in `x` stays NaN on the CPU. For the latter the bound is the first operand: TVM's CPU
    code for max(a, b) is ``a > b ? a : b``, which gives b if either is NaN.
    """
    x, *bounds = node.inputs[0], *(node.inputs[1:] if len(node.inputs) > 1 else ())
    if len(node.inputs) == 1:  # before opset 11 the bounds are attributes
        known = node.attrs
        bounds = [relax.const(known[key], x.ty.dtype.dtype) if key in known else None for key in ("min", "max")]
    bounds += [None] * (2 - len(bounds))
    if (dtype := dtype_of(x)) in ("float16", "float32", "float64"):
        limits = np.finfo(dtype).min, np.finfo(dtype).max
        bounds = [number(limit, dtype) if bound is None else bound for bound, limit in zip(bounds, limits)]
    if any(bound is not None and not isinstance(bound, GenericConst) for bound in bounds):
        return node.with_inputs(x, *bounds).by_tvm()
    for bound, limit in zip(bounds, (relax.op.maximum, relax.op.minimum)):
        if bound is not None and not np.isnan(bound.value.numpy().astype("float64")).any():
            x = node.bb.normalize(limit(bound, x))
    return x


def constant(node: Node) -> relax.Expr | None:
    """Constant given as plain numbers (``value_float`` ...): TVM's converter takes only tensors."""
    for key in ("value_float", "value_int", "value_floats", "value_ints"):
        if key in node.attrs:
            dtype = "float32" if "float" in key else "int64"
            return relax.const(np.asarray(node.attrs[key], dtype), dtype)
    return None


def mul(node: Node) -> relax.Expr | None:
    """Mul by a constant zero, which TVM folds to zero: the result is NaN where the other number is infinite or NaN."""
    for zero, other in (node.inputs, reversed(node.inputs)):
        if _is_zero(zero):
            ones = number(np.ones_like(zero.value.numpy()), dtype_of(zero))  # of its rank
            return relax.op.multiply(node.bb.normalize(relax.op.subtract(other, other)), ones)
    return None


def div(node: Node) -> relax.Expr | None:
    """Div of a constant zero, which TVM folds to zero: the result is NaN where the divisor is zero or NaN."""
    zero, x = node.inputs
    if not _is_zero(zero):
        return None
    undefined = relax.op.logical_or(relax.op.equal(x, zero), relax.op.isnan(x))
    nan = number(np.full_like(zero.value.numpy(), np.nan), dtype_of(zero))
    return relax.op.where(node.bb.normalize(undefined), nan, zero)


def _is_zero(value: relax.Expr) -> bool:
    if not isinstance(value, GenericConst) or not str(value.ty.dtype.dtype).startswith("float"):
        return False
    return value.value.numpy().size == 1 and not value.value.numpy().any()


CONVERTERS = {
    "Clip": clip,
    "Constant": constant,
    "Div": div,
    "Mul": mul,
}
