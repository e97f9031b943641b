# SPDX-License-Identifier: Apache-2.0
"""Quantization, and operators on quantized numbers in exact integer arithmetic.

Quotients are rounded to nearest, ties to even, and then saturate, in the order of ONNX Runtime's kernels, so that the
integers are equal.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx, topi

from smartmem_tvm.frontend.converters.casts import convert, dtype_name
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of, value_of
from smartmem_tvm.narrow import is_integer, limits, storage_of


def quantize_linear(node: Node) -> relax.Expr:
    """QuantizeLinear: per tensor, along an axis, or in blocks of an axis."""
    x, scale, zero = node.inputs[0], node.inputs[1], node.input(2)
    stated = node.attrs.get("output_dtype", 0)
    to = dtype_name(stated) if stated else node.type_of(2) if zero is not None else "uint8"
    precision = node.attrs.get("precision", 0)
    working = dtype_name(precision) if precision else _common_type(dtype_of(x), dtype_of(scale))
    scale, zero = (along_axis(node, each, shape_of(x)) for each in (scale, zero))
    if is_integer(to):
        return saturated(node, x, scale, zero, to, tirx.div, working)
    quotient = _as(node, node.emit(relax.op.divide(_as(node, x, working), _as(node, scale, working))), "float32")
    if zero is not None:
        quotient = node.emit(relax.op.add(quotient, node.emit(convert(node, zero, to, "float32"))))
    return convert(node, quotient, "float32", to, bool(node.attrs.get("saturate", 1)))


def _common_type(first: str, second: str) -> str:
    if first != second and is_integer(first):
        return second
    if first != second:
        raise ValueError(f"its input is {first} and its scale {second}, and no attribute precision says which counts")
    return first


def saturated(
    node: Node, x: relax.Expr, scale: relax.Expr, zero: relax.Expr | None, to: str, combine=tirx.div, dtype="float32"
) -> relax.Var:
    """Return ``round(combine(x, scale)) + zero`` as integers, saturated to their type.

    NaN becomes the least number on CPUs.

    This is one kernel: in separate Relax operators, a pass might multiply by the inverse of the scale, or move the
    multiplication, which would change ties.

    Parameters
    ----------
    combine
        Division or multiplication, in the type `dtype`.
    scale, zero
        Operands that broadcast against `x`.
    """
    low, high = limits(to)

    def kernel(x: te.Tensor, scale: te.Tensor, *zero: te.Tensor) -> te.Tensor:
        def at(*index):
            number = combine(x(*index).astype(dtype), _broadcast(scale, index).astype(dtype)).astype("float32")
            number = tirx.nearbyint(number)
            if zero:
                number = number + _broadcast(zero[0], index).astype("float32")
            # Bounds are constants, and are compared last: LLVM has one instruction for each.
            number = tirx.min(tirx.max(number, tirx.const(low, "float32")), tirx.const(high, "float32"))
            return number.astype("int32").astype(storage_of(to))

        return te.compute(x.shape, at, name="quantize")

    return node.bb.emit_te(kernel, x, scale, *([] if zero is None else [zero]))


def _broadcast(tensor: te.Tensor, index: tuple) -> tirx.Expr:
    last = index[len(index) - len(tensor.shape) :]
    return tensor(*[0 if int(size) == 1 else place for size, place in zip(tensor.shape, last)])


def dequantize_linear(node: Node) -> relax.Expr:
    """DequantizeLinear: per tensor, along an axis, or in blocks of an axis."""
    x, scale, zero = node.inputs[0], node.inputs[1], node.input(2)
    stated = node.attrs.get("output_dtype", 0)
    to = dtype_name(stated) if stated else dtype_of(scale)
    scale, zero = (along_axis(node, each, shape_of(x)) for each in (scale, zero))
    difference, scale = _difference(node, x, zero, node.type_of(0)), _as(node, scale, "float32")
    if dtype_of(x) in ("int8", "uint8") and len(shape_of(x)) > 1 and value_of(difference) is not None:
        # The scale stays apart until passes have seen which products may be of integers (multiply-bytes).
        return _as(node, node.emit(relax.op.multiply(difference, scale)), to)
    return _as(node, node.apply("multiply", difference, scale), to)


def dequantized(node: Node, x: relax.Expr, scale: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """Return the float32 values of integers with one scale and one zero point."""
    scale, zero = (each if each is None else node.reshape(each, ()) for each in (scale, zero))
    return node.apply("multiply", _difference(node, x, zero, dtype_of(x)), scale)


def _difference(node: Node, x: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """Return numbers of a quantized type minus their zero point, in float32."""
    if is_integer(dtype):
        return _as(node, centred(node, x, zero), "float32")
    x, zero = (None if each is None else convert(node, each, dtype, "float32") for each in (x, zero))
    return x if zero is None else node.emit(relax.op.subtract(x, zero))


def centred(node: Node, x: relax.Expr, zero: relax.Expr | None, dtype: str = "int32") -> relax.Expr:
    """Return integers minus their zero point, which broadcasts against them, as int32 or another type wide enough."""
    x = _as(node, x, dtype)
    if zero is None or (value_of(zero) is not None and not np.any(value_of(zero))):
        return x
    return node.apply("subtract", x, _as(node, zero, dtype))


def factor(node: Node, x: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """Return `centred` integers for a product: differences of bytes in 16 bits, which CPUs multiply in pairs."""
    return centred(node, x, zero, "int16" if dtype_of(x) in ("int8", "uint8") else "int32")


def factors(node: Node, left: tuple, right: tuple) -> tuple[relax.Expr, relax.Expr, relax.Expr | None]:
    """Return the two sides of a matrix product, as `factor` has them, and what is to be subtracted from its sums.

    Each side is (numbers, zero point). Where the right one is a constant that fits into signed bytes, the left one
    consists of unsigned bytes, and CPUs multiply four of each at once (`ir.packings`). The left zero point times the
    sums of the constant's columns then comes off the sums.
    """
    (x, x_zero), (w, w_zero) = left, right
    known = value_of(factor(node, w, w_zero))
    for_all = x_zero is None or shape_of(x_zero)[-1:] in ([], [1])
    if dtype_of(x) not in ("int8", "uint8") or len(shape_of(x)) < 2 or not for_all or not are_bytes(known):
        return factor(node, x, x_zero), factor(node, w, w_zero), None
    point = constant(0, "int32") if x_zero is None else _as(node, x_zero, "int32")
    if dtype_of(x) == "int8":
        x = _as(node, node.apply("add", _as(node, x, "int16"), constant(128, "int16")), "uint8")
        point = node.apply("add", point, constant(128, "int32"))
    sums = known.sum(-2, dtype="int32", keepdims=known.ndim > 2)
    known_zero = value_of(point) is not None and not np.any(value_of(point))
    over = None if known_zero else node.apply("multiply", point, constant(sums, "int32"))
    return x, constant(known, "int8"), over


def are_bytes(values: np.ndarray | None) -> bool:
    """Whether the numbers of a constant matrix, or of filters, are known and fit into signed bytes."""
    return values is not None and values.ndim > 1 and values.size > 0 and values.min() >= -128 and values.max() <= 127


def _as(node: Node, x: relax.Expr | None, dtype: str) -> relax.Expr | None:
    return None if x is None else node.astype(x, dtype)


def along_axis(node: Node, parameter: relax.Expr | None, shape: list[int]) -> relax.Expr | None:
    """Return a scale or a zero point in a shape that broadcasts against its tensor.

    It has one number, one for each place along the attribute ``axis``, or one for each ``block_size`` places of it.
    """
    if parameter is None:
        return None
    given, block = shape_of(parameter), node.attrs.get("block_size", 0)
    if not block and np.prod(given, dtype=int) == 1:
        return node.reshape(parameter, ())
    axis = node.attrs.get("axis", 1)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"its axis is {axis}, and its input has {len(shape)} dimensions")
    axis %= len(shape)
    if block:
        return _expanded_blocks(node, parameter, shape, axis, block)
    if given != [shape[axis]]:
        raise ValueError(f"it has scales or zero points of shape {given} for an axis of {shape[axis]}")
    return node.reshape(parameter, [size if at == axis else 1 for at, size in enumerate(shape)])


def _expanded_blocks(node: Node, parameter: relax.Expr, shape: list[int], axis: int, block: int) -> relax.Expr:
    wanted = [-(-size // block) if at == axis else size for at, size in enumerate(shape)]
    if shape_of(parameter) != wanted:
        raise ValueError(f"blocks of {block} ask for scales of shape {wanted}, but it has {shape_of(parameter)}")
    if (known := value_of(parameter)) is not None:
        known = np.repeat(known, block, axis).take(range(shape[axis]), axis)
        return relax.const(known, dtype_of(parameter))
    repeated = node.emit(relax.op.repeat(parameter, block, axis))
    return node.emit(relax.op.strided_slice(repeated, [axis], [0], [shape[axis]])) if shape[axis] % block else repeated


def ratio(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """Return `a` divided by `b`, in a form that no pass turns into a product with an inverse."""
    known = value_of(a) is not None and value_of(b) is not None
    return node.apply("divide", a, b) if known else node.bb.emit_te(topi.divide, a, b)


def dynamic_quantize_linear(node: Node) -> relax.Expr:
    """DynamicQuantizeLinear: numbers as uint8, with a scale and a zero point from their range."""
    return relax.Tuple(dynamically_quantized(node, node.inputs[0]))


def dynamically_quantized(node: Node, x: relax.Expr, fitted: relax.Expr | None = None) -> list[relax.Expr]:
    """Return uint8 numbers, their scale and their zero point, which follow the range of `fitted`, by default `x`."""
    zero, fitted = constant(0, "float32"), x if fitted is None else fitted
    high = node.emit(relax.op.maximum(relax.op.max(fitted), zero))
    low = node.emit(relax.op.minimum(relax.op.min(fitted), zero))
    width = node.emit(relax.op.subtract(high, low))
    levels = constant(255, "float32")
    # A tensor of zeros gets the scale 1.
    width = node.emit(relax.op.where(relax.op.equal(width, zero), levels, width))
    scale = ratio(node, width, levels)
    point = saturated(node, node.emit(relax.op.negative(low)), scale, None, "uint8")
    return [saturated(node, x, scale, point, "uint8"), scale, point]


CONVERTERS = {
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "QuantizeLinear": quantize_linear,
    "com.microsoft.DequantizeLinear": dequantize_linear,
    "com.microsoft.QuantizeLinear": quantize_linear,
}
