# SPDX-License-Identifier: Apache-2.0
"""ONNX operators for which TVM's importer gives Relax that hides what they do, or that is wrong.

Each function takes the block builder, the operator's inputs (None where omitted) and its attributes, and
returns a Relax expression, or None to leave the node to TVM's own converter. An exception is reported with
the name of the node.
"""

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst


def gather(bb: relax.BlockBuilder, inputs: list, attrs: dict) -> relax.Expr | None:
    """Gather: a slice if the indices are an arithmetic progression, else one ``take``.

    TVM's converter computes ``where(indices < 0, indices + shape_of(data)[axis], indices)`` at run time::

        x[:, 1]        constant [1]      -> strided_slice, reshape
        x[:, [1, 5, 6]]  constant        -> take with the indices made non-negative here
        x[indices]     run-time indices  -> take(mode="wrap"), which maps -1 to the last element, as ONNX does

    ONNX leaves indices outside of [-n, n) undefined; "wrap" keeps them inside the tensor.
    """
    data, indices = inputs[0], inputs[1]
    if not isinstance(data.ty, relax.TensorType) or not isinstance(indices.ty, relax.TensorType):
        return None  # shape values
    if isinstance(data, GenericConst) and isinstance(indices, GenericConst):
        return None  # TVM's converter folds it
    axis = attrs.get("axis", 0) % data.ty.ndim
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
    return relax.op.reshape(bb.normalize(part), shape[:axis] + list(index.shape) + shape[axis + 1 :])


def _step(index: np.ndarray) -> int | None:
    """Return the positive common difference of a sequence (1 for a single element), or None."""
    if index.size == 1:
        return 1
    steps = np.unique(np.diff(index))
    return int(steps[0]) if len(steps) == 1 and steps[0] > 0 else None


def clip(bb: relax.BlockBuilder, inputs: list, attrs: dict) -> relax.Expr | None:
    """Clip with constant bounds: ``minimum(high, maximum(low, x))``.

    NaN, which ONNX leaves open, behaves as in ONNX Runtime: a NaN bound is no bound, and a NaN in `x` stays
    NaN on the CPU. For the latter the bound comes first: TVM's CPU code for max(a, b) is ``a > b ? a : b``,
    which gives b if either is NaN.
    """
    x, *bounds = inputs[0], *(inputs[1:] if len(inputs) > 1 else ())
    if len(inputs) == 1:  # before opset 11 the bounds are attributes
        bounds = [relax.const(attrs[key], x.ty.dtype.dtype) for key in ("min", "max") if key in attrs]
        if len(bounds) == 1 and "max" in attrs:
            bounds = [None, *bounds]
    if any(bound is not None and not isinstance(bound, GenericConst) for bound in bounds):
        return None
    for bound, limit in zip(bounds, (relax.op.maximum, relax.op.minimum)):
        if bound is not None and not np.isnan(bound.value.numpy().astype("float64")).any():
            x = bb.normalize(limit(bound, x))
    return x


def pad(bb: relax.BlockBuilder, inputs: list, attrs: dict) -> relax.Expr | None:
    """Pad by nothing: its input. TVM's converter makes an opaque copy of it."""
    pads = attrs.get("pads")  # an attribute before opset 11
    if len(inputs) > 1 and isinstance(inputs[1], GenericConst):
        pads = inputs[1].value.numpy()
    return inputs[0] if pads is not None and not np.any(pads) else None


def constant(bb: relax.BlockBuilder, inputs: list, attrs: dict) -> relax.Expr | None:
    """Constant given as plain numbers (``value_float`` ...): TVM's converter knows tensors only."""
    for key in ("value_float", "value_int", "value_floats", "value_ints"):
        if key in attrs:
            dtype = "float32" if "float" in key else "int64"
            return relax.const(np.asarray(attrs[key], dtype), dtype)
    return None


def resize(bb: relax.BlockBuilder, inputs: list, attrs: dict) -> relax.Expr | None:
    """Resize whose scales do not give whole sizes is refused: TVM's converter computes other coordinates, wrongly."""
    scales = inputs[2] if len(inputs) > 2 else (inputs[1] if len(inputs) == 2 else None)
    if isinstance(scales, GenericConst) and scales.value.numpy().size:
        sizes = np.asarray([int(dim) for dim in inputs[0].ty.shape]) * scales.value.numpy().astype("float64")
        if np.abs(sizes - np.round(sizes)).max() > 1e-3:
            raise ValueError(f"its scales make sizes of {', '.join(f'{size:g}' for size in sizes)}, not whole numbers")
    return None


def conv_transpose(bb: relax.BlockBuilder, inputs: list, attrs: dict) -> relax.Expr | None:
    """ConvTranspose with `output_shape` is refused: TVM's converter ignores it."""
    if "output_shape" in attrs:
        raise ValueError("TVM ignores its attribute output_shape; give pads instead")
    return None


def layer_normalization(bb: relax.BlockBuilder, inputs: list, attrs: dict) -> relax.Expr | None:
    """LayerNormalization in double precision, or whose mean and inverse deviation are asked for: in pieces.

    TVM's operator knows neither: its code generator refuses float64, and its converter gives constants for the
    second and third result.
    """
    x, scale, bias = (*inputs, None)[:3]
    dtype = str(x.ty.dtype.dtype)
    if attrs["tvm_custom"]["num_outputs"] == 1 and dtype != "float64":
        return None
    stash = "float32" if attrs.get("stash_type", 1) == 1 else dtype
    working = "float64" if dtype == "float64" else stash
    axes = list(range(attrs.get("axis", -1) % x.ty.ndim, x.ty.ndim))
    wide = bb.normalize(relax.op.astype(x, working))
    mean = bb.emit(relax.op.mean(wide, axes, keepdims=True))
    centred = bb.emit(relax.op.subtract(wide, mean))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    inverse = bb.emit(relax.op.rsqrt(relax.op.add(variance, relax.const(attrs.get("epsilon", 1e-5), working))))
    result = relax.op.multiply(relax.op.astype(relax.op.multiply(centred, inverse), dtype), scale)
    result = result if bias is None else relax.op.add(result, bias)
    statistics = [relax.op.astype(each, stash) for each in (mean, inverse)]
    return relax.Tuple([bb.emit(each) for each in (result, *statistics)][: attrs["tvm_custom"]["num_outputs"]])


def one_hot(bb: relax.BlockBuilder, inputs: list, attrs: dict) -> relax.Expr | None:
    """OneHot in the type of its values: TVM's converter makes any float a float64, and wants a scalar depth."""
    indices, depth, values = inputs
    if not isinstance(depth, GenericConst) or not isinstance(values, GenericConst):
        return None
    size, (off, on) = int(depth.value.numpy().reshape(-1)[0]), values.value.numpy()
    off, on = (tvm.tirx.const(each.item(), str(each.dtype)) for each in (off, on))
    indices = bb.normalize(relax.op.astype(indices, "int64"))
    negative = relax.op.less(indices, relax.const(0, "int64"))
    indices = relax.op.where(negative, relax.op.add(indices, relax.const(size, "int64")), indices)
    return relax.op.one_hot(bb.normalize(indices), on, off, size, attrs.get("axis", -1))


CONVERTERS = {
    "Gather": gather,
    "Clip": clip,
    "Pad": pad,
    "Constant": constant,
    "Resize": resize,
    "ConvTranspose": conv_transpose,
    "LayerNormalization": layer_normalization,
    "OneHot": one_hot,
}
