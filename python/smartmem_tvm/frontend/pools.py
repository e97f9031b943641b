# SPDX-License-Identifier: Apache-2.0
"""Trim pools with ``ceil_mode`` for which ONNX's shape inference counts one window too many."""

from __future__ import annotations

import onnx

from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.expand_functions import copy_of, types_of

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def trim_pools(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with pools whose number of windows every library counts alike.

    A window that begins in the padding at the end does not count. ONNX's shape inference counts it nevertheless, and so
    do Shape and Size of the result, and ONNX Runtime when it folds them. This pass removes the padding that no window
    needs, or ``ceil_mode``, so that there is no window of that kind.
    """
    if not any(map(_rounds_up, walk.nodes(model.graph))):
        return model
    model, trimmed = copy_of(model), True
    while trimmed:  # the shape of a pool's input is right once the pools before it are trimmed
        types, trimmed = types_of(model), False
        for node in filter(_rounds_up, walk.nodes(model.graph)):
            trimmed = _trim(node, types.get(node.input[0])) or trimmed
    return model


def _rounds_up(node: onnx.NodeProto) -> bool:
    attrs = {each.name: each for each in node.attribute}
    explicit = "auto_pad" not in attrs or attrs["auto_pad"].s in (b"", b"NOTSET")
    return node.op_type in _POOLS and explicit and "ceil_mode" in attrs and attrs["ceil_mode"].i == 1


def _trim(node: onnx.NodeProto, kind: onnx.TypeProto | None) -> bool:
    """Change one pool, in place; return whether it changed."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return False
    attrs = {each.name: each for each in node.attribute}
    sizes = [dim.dim_value for dim in kind.tensor_type.shape.dim][2:]
    rank = len(sizes)
    kernel, strides, dilations = (
        list(attrs[name].ints) if name in attrs else [1] * rank for name in ("kernel_shape", "strides", "dilations")
    )
    pads = list(attrs["pads"].ints) if "pads" in attrs else [0] * 2 * rank
    if not (len(kernel) == len(strides) == len(dilations) == rank == len(pads) / 2 and all(sizes + strides)):
        return False
    trimmed = fewer = False
    more: dict[int, int] = {}  # axis whose last window counts but is cut -> the padding that completes it
    for axis in range(rank):
        inside, end = sizes[axis] + pads[axis], pads[rank + axis]
        rest = inside + end - (kernel[axis] - 1) * dilations[axis] - 1
        windows, over = rest // strides[axis] + 1, rest % strides[axis]
        if rest < 0 or windows * strides[axis] < inside:
            more |= {axis: end + strides[axis] - over} if over else {}
        elif 0 < over <= end:
            pads[rank + axis], trimmed = end - over, True
        else:
            fewer = fewer or over > 0
    # More padding changes no maximum, but may change a mean.
    whole = node.op_type != "AveragePool" and all(end < kernel[axis] for axis, end in more.items())
    if fewer and (whole or not more):
        attrs["ceil_mode"].i = 0
        for axis, end in more.items():
            pads[rank + axis] = end
    elif not trimmed:
        return False
    if "pads" in attrs:
        node.attribute.remove(attrs["pads"])
    node.attribute.append(onnx.helper.make_attribute("pads", pads))
    return True
