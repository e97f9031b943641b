# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX Runtime had before ONNX, or has under another name: they become ONNX's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of

# The version of ONNX whose operators these become; a model of an older version may have them too.
_OPSET = 16


def _later(node: Node) -> Node:
    return replace(node, opset=_OPSET)


def _known(node: Node, position: int, name: str) -> np.ndarray:
    value = node.constant(position)
    if value is None:
        raise ValueError(f"its {name} is known at run time only, and shapes are static; make it constant")
    return value


def expand_dims(node: Node) -> relax.Expr:
    """com.microsoft.ExpandDims: add one axis of size 1."""
    return relax.op.expand_dims(node.inputs[0], int(_known(node, 1, "axis").reshape(-1)[0]))


def gather_nd(node: Node) -> relax.Expr:
    """com.microsoft.GatherND: indices may be int32."""
    return _later(node).call("GatherND", node.inputs[0], node.astype(node.inputs[1], "int64"))


def grid_sample(node: Node) -> relax.Expr:
    """com.microsoft.GridSample: ONNX's of opset 16."""
    kept = {key: node.attrs[key] for key in ("align_corners", "mode", "padding_mode") if key in node.attrs}
    return _later(node).call("GridSample", *node.inputs[:2], **kept)


def pad(node: Node) -> relax.Expr:
    """com.microsoft.Pad: pads may be a row of a matrix, and the value a vector of one number."""
    pads = constant(_known(node, 1, "pads").reshape(-1), "int64")
    value = None if node.input(2) is None else node.reshape(node.inputs[2], ())
    kept = {"mode": node.attrs["mode"]} if "mode" in node.attrs else {}
    return _later(node).call("Pad", node.inputs[0], pads, value, **kept)


def range_of(node: Node) -> relax.Expr:
    """com.microsoft.Range: all three numbers are constants; the default step is 1."""
    start, limit = (_known(node, at, "range").reshape(()) for at in (0, 1))
    step = np.ones((), start.dtype) if node.input(2) is None else _known(node, 2, "range").reshape(())
    count = max(0, int(np.ceil((limit.astype("float64") - start) / step)))
    return constant(start + np.arange(count).astype(start.dtype) * step, dtype_of(node.inputs[0]))


def trilu(node: Node) -> relax.Expr:
    """com.microsoft.Trilu: the upper or lower triangle of each matrix."""
    return _later(node).call("Trilu", *node.inputs[:2], upper=node.attrs.get("upper", 1))


def unfold_tensor(node: Node) -> relax.Expr:
    """com.microsoft.UnfoldTensor: sliding windows along an axis; the places in a window become the last axis."""
    x, (size, step) = node.inputs[0], (node.attrs["size"], node.attrs.get("step", 1))
    rank = len(shape_of(x))
    axis = node.attrs.get("dim", -1) % rank
    if not 0 < size <= shape_of(x)[axis] or step < 1:
        raise ValueError(f"its windows of {size} in steps of {step} do not fit an axis of {shape_of(x)[axis]}")
    begins = np.arange(0, shape_of(x)[axis] - size + 1, step)
    taken = node.emit(relax.op.take(x, constant(begins[:, None] + np.arange(size), "int64"), axis, mode="clip"))
    order = [at for at in range(rank + 1) if at != axis + 1]
    return relax.op.permute_dims(taken, [*order, axis + 1])


def torch_embedding(node: Node) -> relax.Expr:
    """com.microsoft.TorchEmbedding: rows of a table; its other inputs concern gradients."""
    return _later(node).call("Gather", *node.inputs[:2], axis=0)


def conv_transpose_with_dynamic_pads(node: Node) -> relax.Expr:
    """com.microsoft.ConvTransposeWithDynamicPads: its input of pads has to be a constant."""
    kept = {key: value for key, value in node.attrs.items() if not key.startswith("tvm_custom")}
    if node.input(2) is not None:
        kept["pads"] = [int(each) for each in _known(node, 2, "Pads")]
    return _later(node).call("ConvTranspose", node.inputs[0], node.inputs[1], node.input(3), **kept)


CONVERTERS = {
    "com.microsoft.ConvTransposeWithDynamicPads": conv_transpose_with_dynamic_pads,
    "com.microsoft.ExpandDims": expand_dims,
    "com.microsoft.GatherND": gather_nd,
    "com.microsoft.GridSample": grid_sample,
    "com.microsoft.Pad": pad,
    "com.microsoft.Range": range_of,
    "com.microsoft.TorchEmbedding": torch_embedding,
    "com.microsoft.Trilu": trilu,
    "com.microsoft.UnfoldTensor": unfold_tensor,
}
