# SPDX-License-Identifier: Apache-2.0
"""Convolutions and matrix products of quantized numbers, with exact sums in int32."""

from __future__ import annotations

import numpy as np
from tvm import relax, tirx

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of, value_of
from smartmem_tvm.frontend.converters.quantization import (
    are_bytes,
    dynamically_quantized,
    factor,
    factors,
    ratio,
    saturated,
)


def mat_mul_integer(node: Node) -> relax.Expr:
    """MatMulInteger, with zero points per tensor, per row of the left side, or per column of the right one."""
    return _product(node, *node.inputs[:2], node.input(2), node.input(3))


def mat_mul_integer_16(node: Node) -> relax.Expr:
    """com.microsoft.MatMulInteger16, with 16-bit operands; sums of unsigned ones are unsigned."""
    a, b = node.inputs[:2]
    to = "uint32" if dtype_of(a) == dtype_of(b) == "uint16" else "int32"
    return relax.op.matmul(node.emit(relax.op.astype(a, to)), node.emit(relax.op.astype(b, to)), out_dtype=to)


def qlinear_mat_mul(node: Node) -> relax.Expr:
    """QLinearMatMul, with scales and zero points per tensor, per row or per column."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs[:8]
    sums = _product(node, a, b, a_zero, b_zero)
    scale = node.apply("multiply", _of_rows(node, a, a_scale), _of_columns(node, b, b_scale))
    return _requantized(node, sums, scale, _of_rows(node, a, y_scale), _of_rows(node, a, y_zero))


def mat_mul_integer_to_float(node: Node) -> relax.Expr:
    """com.microsoft.MatMulIntegerToFloat: the sums times both scales, plus a bias."""
    a, b, a_scale, b_scale = node.inputs[:4]
    return scaled_product(node, (a, a_scale, node.input(4)), (b, b_scale, node.input(5)), node.input(6))


def dynamic_quantize_mat_mul(node: Node) -> relax.Expr:
    """com.microsoft.DynamicQuantizeMatMul: the left side is quantized by the range of its values."""
    a, a_scale, a_zero = dynamically_quantized(node, node.inputs[0])
    return scaled_product(node, (a, a_scale, a_zero), (node.inputs[1], node.inputs[2], node.input(3)), node.input(4))


def scaled_product(node: Node, left: tuple, right: tuple, bias: relax.Expr | None) -> relax.Expr:
    """Return a product of bytes times both scales, plus a bias; each side is (numbers, scale, zero point)."""
    (a, a_scale, a_zero), (b, b_scale, b_zero) = left, right
    sums = node.emit(relax.op.astype(_product(node, a, b, a_zero, b_zero), dtype_of(a_scale)))
    scale = node.apply("multiply", _of_rows(node, a, a_scale), _of_columns(node, b, b_scale))
    result = node.emit(relax.op.multiply(sums, scale))
    return result if bias is None else relax.op.add(result, bias)


def _product(node: Node, a: relax.Expr, b: relax.Expr, a_zero, b_zero) -> relax.Expr:
    left, right, over = factors(node, (a, _of_rows(node, a, a_zero)), (b, _of_columns(node, b, b_zero)))
    sums = node.emit(relax.op.matmul(left, right, out_dtype="int32"))
    return sums if over is None else node.emit(relax.op.subtract(sums, over))


def _of_rows(node: Node, a: relax.Expr, parameter: relax.Expr | None) -> relax.Expr | None:
    """Return a parameter of the left side, in which a vector has one number for each row, ready to broadcast."""
    if parameter is None or len(shape_of(parameter)) != 1:
        return parameter
    size = shape_of(parameter)[0]
    if size == 1:
        return node.reshape(parameter, ())
    rows = shape_of(a)[-2] if len(shape_of(a)) > 1 else 1
    if size != rows:
        raise ValueError(f"it has {size} scales or zero points for {rows} rows")
    return node.reshape(parameter, (size, 1))


def _of_columns(node: Node, b: relax.Expr, parameter: relax.Expr | None) -> relax.Expr | None:
    """Return a parameter of the right side, in which a vector has one number for each column, ready to broadcast."""
    if parameter is None or len(shape_of(parameter)) != 1 or shape_of(parameter)[0] != 1:
        return parameter
    return node.reshape(parameter, ())


def _requantized(node: Node, sums: relax.Expr, scale: relax.Expr, y_scale: relax.Expr, y_zero: relax.Expr):
    """Return int32 sums in units of `scale` as integers in units of `y_scale`."""
    return saturated(node, sums, ratio(node, scale, y_scale), y_zero, dtype_of(y_zero), tirx.Mul)


def q_gemm(node: Node) -> relax.Expr:
    """com.microsoft.QGemm: as Gemm, with an int32 bias; the result is float32 if it has no scale."""
    a, a_scale, a_zero, b, b_scale, b_zero = node.inputs[:6]
    bias, y_scale, y_zero = (node.input(at) for at in (6, 7, 8))
    b_scale, b_zero = _of_columns(node, b, b_scale), _of_columns(node, b, b_zero)
    if node.attrs.get("transA", 0):
        a = node.emit(relax.op.permute_dims(a))
    if node.attrs.get("transB", 0):
        b = node.emit(relax.op.permute_dims(b))
    sums = _product(node, a, b, _one(node, a_zero), b_zero)
    sums = sums if bias is None else node.emit(relax.op.add(sums, bias))
    scale = node.apply("multiply", node.apply("multiply", _one(node, a_scale), b_scale), _alpha(node))
    if y_scale is None:
        return relax.op.multiply(node.emit(relax.op.astype(sums, "float32")), scale)
    return _requantized(node, sums, scale, _one(node, y_scale), _one(node, y_zero))


def _alpha(node: Node) -> relax.Expr:
    return constant(node.attrs.get("alpha", 1.0), "float32")


def conv_integer(node: Node) -> relax.Expr:
    """ConvInteger, with a zero point of the image, and of the weights one per tensor or per filter."""
    return _convolution(node, *node.inputs[:2], node.input(2), node.input(3))


def qlinear_conv(node: Node) -> relax.Expr:
    """QLinearConv, with scales and zero points of the weights per tensor or per filter, and an int32 bias."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    sums = _convolution(node, x, w, x_zero, w_zero)
    if node.input(8) is not None:
        sums = node.emit(relax.op.add(sums, _of_filters(node, node.input(8), len(shape_of(x)) - 1)))
    scale = node.apply("multiply", _one(node, x_scale), _of_filters(node, w_scale, len(shape_of(x)) - 1))
    return _requantized(node, sums, scale, _one(node, y_scale), _one(node, y_zero))


def _one(node: Node, parameter: relax.Expr) -> relax.Expr:
    """Return a per-tensor parameter as a scalar."""
    return node.reshape(parameter, ()) if shape_of(parameter) else parameter


def _of_filters(node: Node, parameter: relax.Expr | None, after: int) -> relax.Expr | None:
    """Return a per-filter parameter with `after` trailing dimensions of size 1; a per-tensor one as a scalar."""
    if parameter is None:
        return None
    size = int(np.prod(shape_of(parameter), dtype=int))
    return node.reshape(parameter, () if size == 1 else (size, *[1] * (after - 1)))


def _convolution(node: Node, x: relax.Expr, w: relax.Expr, x_zero, w_zero) -> relax.Expr:
    rank = len(shape_of(x)) - 2
    if rank not in _CONVOLUTIONS:
        raise ValueError(f"it slides over {rank} dimensions, and there are kernels for one, two and three")
    convolve, layout = _CONVOLUTIONS[rank]
    strides, dilations = (list(node.attrs.get(key, [1] * rank)) for key in ("strides", "dilations"))
    pads = _pads(node, shape_of(x)[2:], shape_of(w)[2:], strides, dilations)
    kind = {"data_layout": f"NC{layout}", "kernel_layout": f"OI{layout}", "out_dtype": "int32"}
    groups = node.attrs.get("group", 1)
    x_zero = None if x_zero is None else _one(node, x_zero)
    weights = factor(node, w, _of_filters(node, w_zero, rank + 2))
    point, known = _known_byte(x, x_zero), value_of(weights)
    if point is None or not are_bytes(known):
        # The padding is the zero point, so it is 0 after the subtraction.
        data = factor(node, x, x_zero)
        return node.emit(convolve(data, weights, strides, pads, dilations, groups, **kind))
    # Bytes as they are, and the zero point comes off the sums: CPUs multiply four bytes at once (`ir.packings`).
    if any(pads):
        sides = [0, 0, 0, 0, *(each for both in zip(pads[:rank], pads[rank:], strict=True) for each in both)]
        x = node.emit(relax.op.nn.pad(x, sides, pad_value=point))
    sums = node.emit(convolve(x, constant(known, "int8"), strides, [0] * 2 * rank, dilations, groups, **kind))
    over = point * known.reshape(len(known), -1).sum(1, dtype="int32")
    if not np.any(over):
        return sums
    return node.emit(relax.op.subtract(sums, constant(over.reshape(-1, *[1] * rank), "int32")))


def _known_byte(x: relax.Expr, zero: relax.Expr | None) -> int | None:
    """Return the zero point of unsigned bytes, if it is known; else None."""
    known = None if zero is None else value_of(zero)
    if dtype_of(x) != "uint8" or (zero is not None and known is None):
        return None
    return 0 if known is None else int(known.item())


_CONVOLUTIONS = {1: (relax.op.nn.conv1d, "W"), 2: (relax.op.nn.conv2d, "HW"), 3: (relax.op.nn.conv3d, "DHW")}


def _pads(node: Node, sizes: list[int], kernel: list[int], strides: list[int], dilations: list[int]) -> list[int]:
    mode = node.text("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID"):
        return list(node.attrs.get("pads", [0] * 2 * len(sizes))) if mode == "NOTSET" else [0] * 2 * len(sizes)
    begin, end = [], []
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations):
        total = max((-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size, 0)
        begin.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
        end.append(total - begin[-1])
    return begin + end


CONVERTERS = {
    "ConvInteger": conv_integer,
    "MatMulInteger": mat_mul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_mat_mul,
    "com.microsoft.DynamicQuantizeMatMul": dynamic_quantize_mat_mul,
    "com.microsoft.QGemm": q_gemm,
    "com.microsoft.MatMulInteger16": mat_mul_integer_16,
    "com.microsoft.MatMulIntegerToFloat": mat_mul_integer_to_float,
}
