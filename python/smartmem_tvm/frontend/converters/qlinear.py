# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's operators on quantized tensors (QLinearAdd ...), computed in float32.

ONNX Runtime rounds some of them in another order, so a few numbers in ten thousand differ by one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm import relax, tirx

from smartmem_tvm.frontend.converters.contrib_channels_last import channels_first, channels_last
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of
from smartmem_tvm.frontend.converters.quantization import centred, dequantized, ratio, saturated

_Compute = Callable[[Node, list[relax.Expr]], relax.Expr]


def _in_floats(compute: _Compute, *operands: int, result: int | None = None) -> Callable[[Node], relax.Expr]:
    """Return a converter that dequantizes operands, computes in float32, and quantizes the result.

    Parameters
    ----------
    compute
        The function from float32 tensors to one.
    operands
        Positions of the operands; a scale and a zero point (0 if omitted) follow each.
    result
        Position of the scale and the zero point of the result; after the operands by default.
    """
    end = operands[-1] + 3 if result is None else result

    def convert(node: Node) -> relax.Expr:
        given = [[node.input(at + each) for each in range(3)] for at in operands]
        value = node.emit(compute(node, [dequantized(node, *each) for each in given]))
        return saturated(node, value, _scalar(node, end), _scalar(node, end + 1), dtype_of(given[0][0]))

    return convert


def _scalar(node: Node, position: int) -> relax.Expr | None:
    """Return a scale or zero point as a scalar for the whole tensor."""
    parameter = node.input(position)
    if parameter is None or not shape_of(parameter):
        return parameter
    if shape_of(parameter) != [1]:
        raise ValueError(f"input {position} has shape {shape_of(parameter)}, and it means a whole tensor")
    return node.reshape(parameter, ())


def _leaky_relu(node: Node, values: list[relax.Expr]) -> relax.Expr:
    slope = constant(node.attrs.get("alpha", 0.01), "float32")
    (x,) = values
    return relax.op.where(relax.op.less(x, constant(0, "float32")), node.emit(relax.op.multiply(x, slope)), x)


_POOL = ("kernel_shape", "strides", "pads", "auto_pad", "ceil_mode", "count_include_pad")


def _average_pool(node: Node, values: list[relax.Expr]) -> relax.Expr:
    (x,) = values
    kept, last = {key: node.attrs[key] for key in _POOL if key in node.attrs}, node.attrs.get("channels_last", 0)
    result = node.call("AveragePool", channels_first(node, x) if last else x, **kept)
    return channels_last(node, result) if last else result


def _softmax(node: Node, values: list[relax.Expr]) -> relax.Expr:
    """Softmax along an axis; before opset 13, over all axes from it on."""
    (x,) = values
    shape = shape_of(x)
    axis = node.attrs.get("axis", -1) % len(shape)
    if node.attrs.get("opset", 13) >= 13:
        return relax.op.nn.softmax(x, axis)
    flat = node.emit(relax.op.reshape(x, (*shape[:axis], prod(shape[axis:]))))
    return relax.op.reshape(node.emit(relax.op.nn.softmax(flat, -1)), shape)


def global_average_pool(node: Node) -> relax.Expr:
    """com.microsoft.QLinearGlobalAveragePool: sums in int32."""
    x, scale, zero, y_scale, y_zero = (node.inputs[0], *(_scalar(node, at) for at in range(1, 5)))
    rank = len(shape_of(x))
    places = list(range(1, rank - 1) if node.attrs.get("channels_last", 0) else range(2, rank))
    count = 1
    for axis in places:
        count *= shape_of(x)[axis]
    sums = node.emit(relax.op.sum(centred(node, x, zero), places, keepdims=True))
    unit = node.apply("multiply", y_scale, constant(count, "float32"))
    return saturated(node, sums, ratio(node, scale, unit), y_zero, dtype_of(x), tirx.Mul)


def concat(node: Node) -> relax.Expr:
    """com.microsoft.QLinearConcat: requantize each part with the scale of the result."""
    if len(node.inputs) % 3 != 2:
        raise ValueError("a scale and a zero point belong to each of its parts")
    scale, zero = _scalar(node, 0), _scalar(node, 1)
    parts = []
    for at in range(2, len(node.inputs), 3):
        part = dequantized(node, node.inputs[at], _scalar(node, at + 1), _scalar(node, at + 2))
        parts.append(saturated(node, part, scale, zero, dtype_of(zero)))
    return relax.op.concat(parts, node.attrs["axis"])


CONVERTERS = {
    "com.microsoft.QLinearAdd": _in_floats(lambda node, values: relax.op.add(*values), 0, 3),
    "com.microsoft.QLinearAveragePool": _in_floats(_average_pool, 0),
    "com.microsoft.QLinearConcat": concat,
    "com.microsoft.QLinearGlobalAveragePool": global_average_pool,
    "com.microsoft.QLinearLeakyRelu": _in_floats(_leaky_relu, 0),
    "com.microsoft.QLinearMul": _in_floats(lambda node, values: relax.op.multiply(*values), 0, 3),
    "com.microsoft.QLinearSigmoid": _in_floats(lambda node, values: relax.op.sigmoid(*values), 0),
    "com.microsoft.QLinearSoftmax": _in_floats(_softmax, 0),
    "com.microsoft.QLinearWhere": _in_floats(lambda node, values: relax.op.where(node.inputs[0], *values), 1, 4),
}
