# SPDX-License-Identifier: Apache-2.0
"""Element-wise operators: powers, remainders, shifts, activations in types other than float32 ..."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax, te, tirx

from smartmem_tvm.errors import shape_text
from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of, shape_of

_A_FEW = 8  # inputs of Max, Min or Sum
_MOST_PRODUCTS = 64  # multiplications for a power with a constant exponent


def power(node: Node) -> relax.Expr | None:
    """Pow of integers, of bfloat16, or of two types; the result has the type of the base.

    TVM's operator takes one floating type. A power of integers with a constant exponent becomes products, exact in all
    bits; otherwise it is computed in float64, as in ONNX Runtime. The cube of a GELU becomes products, too: TVM warns
    about each power by 3 and more.
    """
    base, exponent = node.inputs
    dtype, other = dtype_of(base), dtype_of(exponent)
    value = node.constant(1)
    if dtype == other and dtype in ("float32", "float64") and value is not None and value.ndim == 0 and value in (3, 4):
        return _to_the(node, base, int(value), base)
    if dtype == other and dtype in ("float16", "float32", "float64"):
        return None
    if "int" in dtype and value is not None and value.ndim == 0 and value in range(_MOST_PRODUCTS):
        return _to_the(node, base, int(value), base if value else relax.op.full_like(base, constant(1, dtype)))
    working = "float32" if _fits_float32(dtype) and _fits_float32(other) else "float64"
    result = relax.op.power(astype(node, base, working), astype(node, exponent, working))
    return relax.op.astype(node.emit(result), dtype)


def of_several(name: str) -> Callable[[Node], relax.Expr | None]:
    """Return the converter of Max, Min or Sum of a few tensors: a chain of binary operators, which can be fused.

    TVM stacks the inputs and reduces them; this is kept for many inputs of one rank, as stacks have no others.
    """

    def convert(node: Node) -> relax.Expr | None:
        ranks = {len(each.ty.shape) for each in node.inputs}
        if (len(node.inputs) > _A_FEW and len(ranks) == 1) or dtype_of(node.inputs[0]) == "bfloat16":
            return None
        result, *others = node.inputs
        for each in others:
            result = node.apply(name, result, each)
        return result

    return convert


def mean(node: Node) -> relax.Expr | None:
    """Mean of a few tensors, or of several ranks: their sum by their number."""
    total = of_several("add")(node)
    return None if total is None else node.apply("divide", total, constant(len(node.inputs), dtype_of(total)))


def gemm(node: Node) -> relax.Expr:
    """Gemm without its third operand where `beta` is 0: as in BLAS it is not read then, whatever it holds."""
    if node.attrs.get("beta", 1.0) == 0:
        return node.with_inputs(*node.inputs[:2], None).by_tvm()
    return node.by_tvm()


def prelu(node: Node) -> relax.Expr:
    """PRelu, whose slopes must fit its numbers: TVM would notice it when operators become loops."""
    x, slope = (shape_of(each) for each in node.inputs)
    if len(slope) > len(x) or any(size not in (1, there) for size, there in zip(slope[::-1], x[::-1])):
        raise ValueError(f"its slopes of shape {shape_text(slope)} do not fit numbers of shape {shape_text(x)}")
    return node.by_tvm()


def negate(node: Node) -> relax.Expr | None:
    """Neg of unsigned numbers, which wrap: TVM makes a constant -1 of their type, and simplifies 0 - x to 0."""
    dtype = dtype_of(node.inputs[0])
    if not dtype.startswith("uint"):
        return None
    return astype(node, node.emit(relax.op.negative(astype(node, node.inputs[0], dtype[1:]))), dtype)


def atan2(node: Node) -> relax.Expr:
    """C's ``atan2`` of two tensors of one shape and type: Relax has no operator for it."""
    y, x = node.inputs
    return node.bb.emit_te(
        lambda y, x: te.compute(y.shape, lambda *at: tirx.atan2(y(*at), x(*at)), name="atan2"),
        y,
        x,
        primfunc_name_hint="atan2",
    )


def _fits_float32(dtype: str) -> bool:
    return dtype in ("float32", "float16", "bfloat16")


def _to_the(node: Node, base: relax.Expr, exponent: int, result: relax.Expr) -> relax.Expr:
    """Compute a power by repeated squaring."""
    if exponent <= 1:
        return result
    half = node.emit(_to_the(node, base, exponent // 2, base))
    square = node.emit(relax.op.multiply(half, half))
    return relax.op.multiply(square, base) if exponent % 2 else square


def mod(node: Node) -> relax.Expr | None:
    """Mod of floating point numbers with the sign of the divisor, through the exact remainder.

    TVM computes ``x - floor(x / y) * y``, which is NaN for an infinite divisor.
    """
    x, y = node.inputs
    dtype = dtype_of(x)
    if node.attrs.get("fmod", 0) or "float" not in dtype:
        return None
    working = "float32" if dtype in ("float16", "bfloat16") else dtype
    x, y, zero = astype(node, x, working), astype(node, y, working), constant(0, working)
    rest = node.emit(relax.op.mod(x, y))
    other_sign = node.emit(relax.op.less(relax.op.multiply(relax.op.sign(rest), relax.op.sign(y)), zero))
    return astype(node, node.emit(relax.op.where(other_sign, relax.op.add(rest, y), rest)), dtype)


def bit_shift(node: Node) -> relax.Expr | None:
    """BitShift by a negative number of bits or by at least the type's width: the result is 0, or the sign's bits.

    TVM leaves the result of these shifts to the processor.
    """
    x, y = node.inputs
    dtype, value = dtype_of(x), node.constant(1)
    last, signed, right = np.dtype(dtype).itemsize * 8 - 1, dtype.startswith("int"), node.text("direction") == "RIGHT"
    if value is not None and (value >= 0).all() and (value <= last).all():
        return None
    within = node.emit(relax.op.less_equal(y, constant(last, dtype)))
    if signed:
        within = node.emit(relax.op.logical_and(within, relax.op.greater_equal(y, constant(0, dtype))))
    bits = node.emit(relax.op.where(within, y, constant(last, dtype)))
    shifted = node.emit((relax.op.right_shift if right else relax.op.left_shift)(x, bits))
    return shifted if right and signed else relax.op.where(within, shifted, constant(0, dtype))


def is_inf(node: Node) -> relax.Expr | None:
    """IsInf of one sign, or of bfloat16."""
    x = node.inputs[0]
    signs = [sign for sign, name in ((1, "positive"), (-1, "negative")) if node.attrs.get(f"detect_{name}", 1)]
    x = astype(node, x, "float32") if dtype_of(x) == "bfloat16" else x
    if len(signs) == 2:
        return relax.op.isinf(x)
    if not signs:
        return node.emit(relax.op.full_like(x, constant(False, "bool"), "bool"))
    return relax.op.equal(x, constant(signs[0] * np.inf, dtype_of(x)))


def equal(node: Node) -> relax.Expr | None:
    """Equal of booleans, which TVM's code generator compares as floating point numbers."""
    x, y = node.inputs
    if not all(isinstance(each.ty, relax.TensorType) and dtype_of(each) == "bool" for each in (x, y)):
        return None
    return relax.op.equal(astype(node, x, "uint8"), astype(node, y, "uint8"))


def sign(node: Node) -> relax.Expr | None:
    """Sign of unsigned numbers, and of NaN, which stays NaN."""
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    if dtype.startswith("u"):
        return relax.op.astype(relax.op.not_equal(x, constant(0, dtype)), dtype)
    if dtype.startswith("int"):
        return None
    return relax.op.where(node.emit(relax.op.isnan(x)), x, node.emit(relax.op.sign(x)))


def shrink(node: Node) -> relax.Expr | None:
    """Shrink of integers, whose threshold and bias may be fractions: computed in float32."""
    return in_float32(node) if "int" in dtype_of(node.inputs[0]) else None


def in_float32(node: Node) -> relax.Expr:
    """Convert with TVM's converter in float32 between casts."""
    x = node.inputs[0]
    wide = [
        each if each is None or dtype_of(each) != dtype_of(x) else astype(node, each, "float32") for each in node.inputs
    ]
    result = node.emit(node.with_inputs(*wide).by_tvm())
    return relax.op.astype(result, dtype_of(x)) if dtype_of(result) == "float32" else result


def _in_float32(*dtypes: str) -> Callable[[Node], relax.Expr | None]:
    """Return the converter of an operator for which TVM has no code in these types."""
    return lambda node: in_float32(node) if dtype_of(node.inputs[0]) in dtypes else None


def elu(node: Node) -> relax.Expr | None:
    """Elu and Selu in any type; TVM's converters compute only float32."""
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    if dtype == "float32":
        return None
    if dtype != "float64":
        return in_float32(node)
    alpha = node.attrs.get("alpha", 1.0 if node.op == "Elu" else np.float32(1.6732632423543772))
    gamma = node.attrs.get("gamma", 1.0 if node.op == "Elu" else np.float32(1.0507009873554805))
    below = relax.op.multiply(constant(alpha, dtype), relax.op.subtract(relax.op.exp(x), constant(1, dtype)))
    result = node.emit(relax.op.where(relax.op.greater(x, constant(0, dtype)), x, node.emit(below)))
    return result if gamma == 1 else relax.op.multiply(constant(gamma, dtype), result)


def celu(node: Node) -> relax.Expr:
    """Celu, ``max(0, x) + min(0, a (exp(x / a) - 1))``; a scalar stays a scalar, unlike in ONNX's function."""
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    alpha, zero, one = (constant(value, dtype) for value in (node.attrs.get("alpha", 1.0), 0, 1))
    power = node.emit(relax.op.exp(node.emit(relax.op.divide(x, alpha))))
    below = node.emit(relax.op.multiply(alpha, node.emit(relax.op.subtract(power, one))))
    return relax.op.add(node.emit(relax.op.maximum(zero, x)), node.emit(relax.op.minimum(zero, below)))


def hard_swish(node: Node) -> relax.Expr | None:
    """HardSwish of doubles: its constant 1/6 is an attribute of ONNX's HardSigmoid and so a float32."""
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    if dtype != "float64":
        return None
    line = relax.op.add(relax.op.multiply(x, constant(np.float32(1 / 6), dtype)), constant(0.5, dtype))
    return relax.op.multiply(x, node.emit(relax.op.clip(node.emit(line), 0, 1)))


def gelu(node: Node) -> relax.Expr | None:
    """Gelu of doubles by the tanh approximation, whose two constants are float32 in ONNX's function."""
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    if dtype != "float64" or node.attrs.get("approximate") != b"tanh":
        return None
    cubic, two_over_pi = (constant(np.float32(value), dtype) for value in (0.044715, 2 / np.pi))
    cube = node.emit(relax.op.multiply(node.emit(relax.op.multiply(x, x)), x))
    inner = node.emit(relax.op.add(x, node.emit(relax.op.multiply(cubic, cube))))
    power = node.emit(relax.op.tanh(node.emit(relax.op.multiply(relax.op.sqrt(two_over_pi), inner))))
    half = node.emit(relax.op.multiply(constant(0.5, dtype), x))
    return relax.op.multiply(half, node.emit(relax.op.add(constant(1, dtype), power)))


def thresholded_relu(node: Node) -> relax.Expr:
    """ThresholdedRelu in any type; TVM multiplies by 0 or 1, which gives NaN for an infinite number."""
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    above = relax.op.greater(x, constant(node.attrs.get("alpha", 1.0), dtype))
    return relax.op.where(above, x, constant(0, dtype))


_HALVES = _in_float32("float16", "bfloat16")

CONVERTERS = {
    "BitShift": bit_shift,
    "Celu": celu,
    "Elu": elu,
    "Equal": equal,
    "Gelu": gelu,
    "Gemm": gemm,
    "HardSwish": hard_swish,
    "IsInf": is_inf,
    "Max": of_several("maximum"),
    "Mean": mean,
    "Min": of_several("minimum"),
    "Mod": mod,
    "Neg": negate,
    "PRelu": prelu,
    "Pow": power,
    "Selu": elu,
    "Shrink": shrink,
    "Sign": sign,
    "Sum": of_several("add"),
    "ThresholdedRelu": thresholded_relu,
    # Neither LLVM nor TVM has these functions in half precision.
    **dict.fromkeys(
        ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "LRN"),
        _HALVES,
    ),
    # Already a kernel when `WidenSums` searches for sums.
    "Einsum": _HALVES,
    "IsNaN": _in_float32("bfloat16"),
    "smartmem.Atan2": atan2,  # of `torch_angles`
}
