# SPDX-License-Identifier: Apache-2.0
"""Operators that move data: Gather, Pad, OneHot ..."""

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.ir import GenericConst

from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of, shape_of


def gather(node: Node) -> relax.Expr | None:
    """Gather: a slice if the indices are an arithmetic progression, otherwise one ``take``.

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
    """Pad: return the input for pads of 0, of which TVM makes an opaque copy; for a run-time value pad zeros first."""
    pads = node.attrs.get("pads")  # an attribute before opset 11
    if len(node.inputs) > 1 and isinstance(node.inputs[1], GenericConst):
        pads = node.inputs[1].value.numpy()
    if pads is not None and not np.any(pads):
        return node.inputs[0]
    if node.text("mode", "constant") == "wrap" and pads is not None:
        return _wrapped(node, pads)
    value = node.input(2)
    if pads is None or node.text("mode", "constant") != "constant":
        return None
    x, pads, axes = node.inputs[0], np.asarray(pads), node.constant(3)
    widths = np.zeros((len(shape_of(x)), 2), int)
    widths[range(len(widths)) if axes is None else axes] = pads.reshape(2, -1).T
    if value is None or isinstance(value, GenericConst):
        zero = not (node.attrs.get("value") if value is None else np.any(value.value.numpy()))
        # An operator, and not TVM's loops for this size: an open dimension needs to know what it does.
        zeros = zero and widths.min() >= 0 and "float" in dtype_of(x)
        return relax.op.nn.pad(x, [int(each) for each in widths.reshape(-1)], "constant", 0.0) if zeros else None
    border = np.pad(np.zeros(shape_of(x), bool), np.maximum(widths, 0), constant_values=True)
    cut = tuple(slice(max(0, -first), size - max(0, -last)) for (first, last), size in zip(widths, border.shape))
    zeros = node.emit(node.with_inputs(x, node.inputs[1], None, node.input(3)).by_tvm())
    return relax.op.where(constant(border[cut], "bool"), value, zeros)


def _wrapped(node: Node, pads) -> relax.Expr:
    """Pad in mode "wrap", with the numbers of the other side: TVM's operator lacks the mode."""
    x, axes = node.inputs[0], node.constant(3)
    axes = range(len(shape_of(x))) if axes is None else axes
    for axis, (first, last) in zip(axes, np.asarray(pads).reshape(2, -1).T):
        size = shape_of(x)[axis]
        if first or last:
            x = node.emit(relax.op.take(x, constant(np.arange(-first, size + last) % size, "int64"), int(axis)))
    return x


def one_hot(node: Node) -> relax.Expr | None:
    """OneHot in the type of its values: TVM's converter turns any float into float64, and requires a scalar depth."""
    indices, depth, values = node.inputs
    if not isinstance(depth, GenericConst):
        raise ValueError("its depth is known only at run time; make it an initializer")
    if not isinstance(values, GenericConst):
        hot = node.emit(one_hot(node.with_inputs(indices, depth, constant([0, 1], "int8"))))
        off, on = (node.emit(relax.op.strided_slice(values, [0], [at], [at + 1])) for at in (0, 1))
        off, on = (node.emit(relax.op.reshape(each, ())) for each in (off, on))
        return relax.op.where(node.emit(relax.op.greater(hot, constant(0, "int8"))), on, off)
    size, (off, on) = int(depth.value.numpy().reshape(-1)[0]), values.value.numpy()
    off, on = (tvm.tirx.const(each.item(), str(each.dtype)) for each in (off, on))
    indices = node.bb.normalize(relax.op.astype(indices, "int64"))
    negative = relax.op.less(indices, relax.const(0, "int64"))
    indices = node.bb.normalize(relax.op.where(negative, relax.op.add(indices, relax.const(size, "int64")), indices))
    axis = node.attrs.get("axis", -1) % (indices.ty.ndim + 1)
    return relax.op.one_hot(indices, on, off, size, axis)


def eye_like(node: Node) -> relax.Expr:
    """EyeLike as a constant: TVM's converter only supports the type of the input."""
    number = node.attrs.get("dtype")
    dtype = dtype_of(node.inputs[0]) if number is None else str(onnx.helper.tensor_dtype_to_np_dtype(number))
    return constant(np.eye(*shape_of(node.inputs[0]), node.attrs.get("k", 0)), dtype)


def concat(node: Node) -> relax.Expr | None:
    """Concat without the parts that have no elements."""
    if not all(isinstance(each.ty, relax.TensorType) for each in node.inputs):
        return None  # shape values
    parts = [each for each in node.inputs if 0 not in shape_of(each)]
    if not parts or len(parts) == len(node.inputs):
        return None
    return relax.op.concat(parts, node.attrs.get("axis", 0)) if len(parts) > 1 else parts[0]


def slice_(node: Node) -> relax.Expr | None:
    """Slice with an empty result; TVM's operator gives the axis a negative size."""
    x = node.inputs[0]
    if not isinstance(x.ty, relax.TensorType):
        return None  # shape values
    if node.opset < 10:
        starts, ends, axes, steps = node.attrs.get("starts"), node.attrs.get("ends"), node.attrs.get("axes"), None
    else:
        starts, ends, axes, steps = map(node.constant, range(1, 5))
    if starts is None or ends is None:
        return None
    sizes, starts = shape_of(x), list(map(int, starts))
    clamped = list(starts)
    for at, (start, end) in enumerate(zip(starts, ends)):
        axis, step = at if axes is None else int(axes[at]), 1 if steps is None else int(steps[at])
        size = shape_of(x)[axis]
        if step < 0 and start < -size:
            start = clamped[at] = 0  # the first number, as ONNX specifies; numpy takes none
        sizes[axis] = len(range(*slice(start, int(end), step).indices(size)))
    if 0 in sizes:
        return constant(np.zeros(sizes), dtype_of(x))
    if clamped == starts:
        return None
    return node.with_inputs(x, constant(np.array(clamped), "int64"), *node.inputs[2:]).by_tvm()


def top_k(node: Node) -> relax.Expr | None:
    """TopK of uint64, computed on int64 in the same order; an unsorted TopK returns sorted results, too."""
    x = node.inputs[0]
    if dtype_of(x) != "uint64":
        return node.with_inputs(*node.inputs, sorted=1).by_tvm() if not node.attrs.get("sorted", 1) else None
    lowest = constant(np.iinfo("int64").min, "int64")
    turned = node.emit(relax.op.bitwise_xor(astype(node, x, "int64"), lowest))
    found = node.emit(node.with_inputs(turned, *node.inputs[1:], sorted=1).by_tvm())
    values = node.emit(relax.op.bitwise_xor(node.emit(relax.TupleGetItem(found, 0)), lowest))
    return relax.Tuple([astype(node, values, "uint64"), node.emit(relax.TupleGetItem(found, 1))])


def one_axis(node: Node) -> relax.Expr | None:
    """Squeeze and Unsqueeze of an axis that is a scalar instead of a list of one."""
    axes = node.constant(1)
    if axes is None or axes.ndim:
        return None
    return node.with_inputs(node.inputs[0], constant(axes.reshape(1), "int64")).by_tvm()


def compress(node: Node) -> relax.Expr:
    """Compress by a constant mask."""
    mask = node.constant(1)
    if mask is None:
        raise ValueError("its condition decides the shape, and is known only at run time; make it an initializer")
    x, axis = node.inputs[0], node.attrs.get("axis")
    if axis is None:
        x, axis = node.reshape(x, [-1]), 0
    places = np.flatnonzero(mask)
    size = shape_of(x)[axis]
    if places.size and places[-1] >= size:
        raise ValueError(f"it takes element {places[-1]} from an axis of size {size}")
    return relax.op.take(x, constant(places, "int64"), axis)


CONVERTERS = {
    "Compress": compress,
    "Concat": concat,
    "EyeLike": eye_like,
    "Gather": gather,
    "OneHot": one_hot,
    "Pad": pad,
    "Slice": slice_,
    "Squeeze": one_axis,
    "TopK": top_k,
    "Unsqueeze": one_axis,
}
