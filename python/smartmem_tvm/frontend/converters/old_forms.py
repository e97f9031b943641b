# SPDX-License-Identifier: Apache-2.0
"""Convert old versions of operators to their newest form: attributes become inputs, and the like.

Our converters and TVM's support the newest forms; TVM applies its oldest form to any older one, even if that has
another meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
from onnx import TensorProto
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of
from smartmem_tvm.frontend.old_versions import ENDED


def newest_form(node: Node) -> Node | relax.Expr:
    """Return a node in the newest form of its operator, or the expression it computes if there is no operator for it.

    Raises
    ------
    ValueError
        If no version of its operator allows it.
    """
    for before, renew in zip(ENDED.get(node.op, ()), RENEW.get(node.op, ()), strict=True):
        if isinstance(node, Node) and node.opset < before:
            node = renew(node)
    return node


def _renewed(node: Node, opset: int, inputs: list, without: tuple[str, ...] = (), **attrs) -> Node:
    kept = {name: value for name, value in node.attrs.items() if name not in without}
    inputs = onnx_frontend.onnx_input(inputs)
    return replace(node, inputs=inputs, opset=max(opset, node.opset), attrs={**kept, **attrs})


def _whole(values) -> relax.Expr:
    return constant(np.array(values), "int64")


def _as_input(name: str, opset: int, missing: tuple = ()) -> Callable[[Node], Node]:
    """Turn an attribute of integers into the second input."""

    def renew(node: Node) -> Node:
        values = node.attrs.get(name, missing or None)
        inputs = [node.inputs[0], *([] if values is None else [_whole(values)])]
        return node if len(node.inputs) > 1 else _renewed(node, opset, inputs, (name,))

    return renew


def _broadcast(node: Node) -> Node:
    """Append axes of size 1 to the second operand, which is aligned to an axis of the first."""
    x, y = node.inputs
    if node.attrs.get("broadcast", 0) and "axis" in node.attrs:
        shape, rank = shape_of(y), len(shape_of(x))
        after = rank - node.attrs["axis"] % rank - len(shape)
        if after < 0:
            raise ValueError(
                f"its second input has {len(shape)} axes, and begins at axis {node.attrs['axis']} of {rank}"
            )
        y = node.reshape(y, [*shape, *[1] * after])
    return _renewed(node, 7, [x, y], ("axis", "broadcast"))


def _slopes(node: Node) -> Node:
    """Reshape slopes, one for each channel, to broadcast along the second axis."""
    x, slope = node.inputs
    shape, rank = shape_of(slope), len(shape_of(x))
    if len(shape) == 1 and shape != [1] and rank > 2:
        slope = node.reshape(slope, [*shape, *[1] * (rank - 2)])
    return _renewed(node, 7, [x, slope])


def _flattened(node: Node) -> Node | relax.Expr:
    """Flatten all axes from ``axis`` on into one."""
    x = node.inputs[0]
    shape = shape_of(x)
    axis = node.attrs.get("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise ValueError(f"its axis is {axis}, and its input has {len(shape)} axes")
    axis = axis + len(shape) if axis < 0 else axis
    if axis == len(shape) - 1 or (axis < len(shape) and prod(shape[axis + 1 :]) == 1):
        return _renewed(node, 13, [x], axis=axis)
    rows = node.reshape(x, [prod(shape[:axis]), prod(shape[axis:])])
    found = node.emit(node.convert(_renewed(node, 13, [rows], axis=1)))
    return node.emit(relax.op.reshape(found, shape))


def _cast(node: Node) -> Node:
    """Replace the type's name by its number."""
    name = node.text("to")
    if name not in set(TensorProto.DataType.keys()):
        raise ValueError(f"its type is called '{name}', and ONNX knows no such type")
    return _renewed(node, 6, node.inputs, to=TensorProto.DataType.Value(name))


def _pad(node: Node) -> Node:
    """Turn the widths and the padding value into inputs."""
    if len(node.inputs) > 1:
        return node
    widths = node.attrs.get("pads", node.attrs.get("paddings"))
    if widths is None:
        raise ValueError("it does not say by how much")
    value = constant(node.attrs.get("value", 0.0), dtype_of(node.inputs[0]))
    return _renewed(node, 11, [node.inputs[0], _whole(widths), value], ("pads", "paddings", "value"))


def _slice(node: Node) -> Node:
    starts, ends = node.attrs.get("starts", ()), node.attrs.get("ends", ())
    if len(node.inputs) > 1:
        return node
    if len(starts) != len(ends):
        raise ValueError(f"it has {len(starts)} starts and {len(ends)} ends")
    axes = node.attrs.get("axes", range(len(starts)))
    return _renewed(node, 10, [node.inputs[0], *map(_whole, (starts, ends, list(axes)))], ("starts", "ends", "axes"))


def _split(node: Node) -> Node:
    """Convert sizes, which may have the type of the data, to integers."""
    sizes = node.attrs.get("split", node.constant(1))
    if sizes is None and len(node.inputs) > 1:
        raise ValueError("its sizes are known only at run time; make them an initializer")
    inputs = [node.inputs[0], *([] if sizes is None else [_whole(np.asarray(sizes).astype("int64"))])]
    return _renewed(node, 13, inputs, ("split",))


def _tile(node: Node) -> Node:
    """Turn a number of copies along one axis into repeats of all axes."""
    count, axis = node.constant(1), node.constant(2)
    if count is None or axis is None:
        raise ValueError("its tiles and axis are known only at run time; make them initializers")
    repeats = [1] * len(shape_of(node.inputs[0]))
    repeats[int(axis.reshape(-1)[0])] = int(count.reshape(-1)[0])
    return _renewed(node, 6, [node.inputs[0], _whole(repeats)])


def _clip(node: Node) -> Node:
    if len(node.inputs) > 1:
        return node
    bounds = [node.attrs.get(name) for name in ("min", "max")]
    known = [None if each is None else constant(each, dtype_of(node.inputs[0])) for each in bounds]
    return _renewed(node, 11, [node.inputs[0], *known], ("min", "max"))


def _at_each_place(node: Node) -> Node | relax.Expr:
    """Convert BatchNormalization with statistics for each pixel instead of each channel."""
    if node.opset < 7 and not node.attrs.get("is_test", 0):
        raise ValueError("it is in training mode (is_test is 0); export the model for inference")
    if node.attrs.get("spatial", 1):
        return _renewed(node, 9, node.inputs, ("is_test", "spatial", "consumed_inputs"), **_test_mode(node))
    if node.outputs > 1 and node.opset >= 7:
        raise ValueError("it is in training mode; export the model for inference")
    x, scale, bias, mean, variance = node.inputs
    epsilon = constant(node.attrs.get("epsilon", 1e-5), dtype_of(x))
    deviation = node.apply("sqrt", node.apply("add", variance, epsilon))
    centred = node.emit(relax.op.subtract(x, mean))
    return relax.op.add(node.emit(relax.op.multiply(node.emit(relax.op.divide(centred, deviation)), scale)), bias)


def _test_mode(node: Node) -> dict[str, int]:
    return {"is_test": 1} if node.opset < 7 else {}


def _count(node: Node) -> Node:
    """Turn the attribute ``k`` into an input."""
    return node if len(node.inputs) > 1 else _renewed(node, 10, [node.inputs[0], _whole([node.attrs["k"]])], ("k",))


def _upsample(node: Node) -> Node:
    scales = [1.0, 1.0, node.attrs.get("height_scale", 1.0), node.attrs.get("width_scale", 1.0)]
    return _renewed(node, 7, node.inputs, ("height_scale", "width_scale"), scales=scales)


def _whole_norm(node: Node) -> Node:
    """Convert the order of a norm, which was a float, to an integer."""
    order = node.attrs.get("p", 2.0)
    if order != int(order):
        raise ValueError(f"its order p is {order}, and only whole ones are supported")
    return _renewed(node, 2, node.inputs, p=int(order))


def _defaults(opset: int, **attrs) -> Callable[[Node], Node]:
    """Write out the old defaults of missing attributes."""

    def renew(node: Node) -> Node:
        return _renewed(node, opset, node.inputs, **{**attrs, **node.attrs})

    return renew


_Renew = Callable[[Node], Node | relax.Expr]

RENEW: dict[str, tuple[_Renew, ...]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"), (_broadcast,)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), (_flattened,)),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "ReduceSum"), (_as_input("axes", 13),)),
    **dict.fromkeys(("LpPool", "GlobalLpPool"), (_whole_norm,)),
    "BatchNormalization": (_at_each_place,),
    "Cast": (_cast,),
    "Clip": (_clip,),
    "Concat": (_defaults(4, axis=1),),
    "PRelu": (_slopes,),
    "Pad": (_pad,),
    "Reshape": (_as_input("shape", 5),),
    "Selu": (_defaults(6, alpha=1.6732, gamma=1.0507),),
    "Slice": (_slice,),
    "Split": (_split,),
    "Tile": (_tile,),
    "TopK": (_count, _defaults(11)),
    "Upsample": (_upsample,),
}
"""Operator -> the conversion of each form that ended, in the order of `old_versions.ENDED`."""
