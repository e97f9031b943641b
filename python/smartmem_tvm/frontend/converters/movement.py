# SPDX-License-Identifier: Apache-2.0
"""Operators that move data: Gather, Pad, OneHot ..."""

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from smartmem_tvm.frontend.converters.node import Node


def gather(node: Node) -> relax.Expr | None:
    """Gather: a slice if the indices are an arithmetic progression, else one ``take``.

    TVM's converter computes ``where(indices < 0, indices + shape_of(data)[axis], indices)`` at run time::

        x[:, 1]        constant [1]      -> strided_slice, reshape
        x[:, [1, 5, 6]]  constant        -> take with the indices made non-negative here
        x[indices]     run-time indices  -> take(mode="wrap"), which maps -1 to the last element, as ONNX does

    ONNX leaves indices outside of [-n, n) undefined; "wrap" keeps them inside the tensor.
    """
    data, indices = node.inputs[0], node.inputs[1]
    if not isinstance(data.ty, relax.TensorType) or not isinstance(indices.ty, relax.TensorType):
        return None  # shape values
    if isinstance(data, GenericConst) and isinstance(indices, GenericConst):
        return None  # TVM's converter folds it
    axis = node.attrs.get("axis", 0) % data.ty.ndim
    size = int(data.ty.shape[axis])
    if not isinstance(indices, GenericConst):
        return relax.op.take(data, indices, axis, mode="wrap")
    index = indices.value.numpy().astype("int64")
    if ((index < -size) | (index >= size)).any():
        raise ValueError(f"it takes elements {index.min()}..{index.max()} from an axis of size {size}")
    index = np.where(index < 0, index + size, index)
    step = _step(index.reshape(-1))
    if step is None:
        return relax.op.take(data, relax.const(index, "int64"), axis)
    first, last = int(index.flat[0]), int(index.flat[-1])
    part = relax.op.strided_slice(data, [axis], [first], [last + 1], [step], assume_inbound=True)
    if index.ndim == 1:
        return part
    shape = [int(dim) for dim in data.ty.shape]
    return relax.op.reshape(node.bb.normalize(part), shape[:axis] + list(index.shape) + shape[axis + 1 :])


def _step(index: np.ndarray) -> int | None:
    """Return the positive common difference of a sequence (1 for a single element), or None."""
    if index.size == 1:
        return 1
    steps = np.unique(np.diff(index))
    return int(steps[0]) if len(steps) == 1 and steps[0] > 0 else None


def pad(node: Node) -> relax.Expr | None:
    """Pad by nothing: its input. TVM's converter makes an opaque copy of it."""
    pads = node.attrs.get("pads")  # an attribute before opset 11
    if len(node.inputs) > 1 and isinstance(node.inputs[1], GenericConst):
        pads = node.inputs[1].value.numpy()
    return node.inputs[0] if pads is not None and not np.any(pads) else None


def one_hot(node: Node) -> relax.Expr | None:
    """OneHot in the type of its values: TVM's converter makes any float a float64, and wants a scalar depth."""
    indices, depth, values = node.inputs
    if not isinstance(depth, GenericConst) or not isinstance(values, GenericConst):
        return None
    size, (off, on) = int(depth.value.numpy().reshape(-1)[0]), values.value.numpy()
    off, on = (tvm.tirx.const(each.item(), str(each.dtype)) for each in (off, on))
    indices = node.bb.normalize(relax.op.astype(indices, "int64"))
    negative = relax.op.less(indices, relax.const(0, "int64"))
    indices = relax.op.where(negative, relax.op.add(indices, relax.const(size, "int64")), indices)
    return relax.op.one_hot(node.bb.normalize(indices), on, off, size, node.attrs.get("axis", -1))


CONVERTERS = {
    "Gather": gather,
    "OneHot": one_hot,
    "Pad": pad,
}
