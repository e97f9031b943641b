# SPDX-License-Identifier: Apache-2.0
"""Layer, mean-variance, RMS and batch normalization, and Dropout."""

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of, shape_of


def layer_normalization(node: Node) -> relax.Expr | None:
    """LayerNormalization in double precision, or with mean and inverse deviation as results, as simple operators.

    TVM's operator supports neither: its code generator refuses float64, and its converter returns constants for the
    second and third result.
    """
    x, scale, bias = (*node.inputs, None)[:3]
    dtype = str(x.ty.dtype.dtype)
    if node.outputs == 1 and dtype != "float64":
        return None
    stash = "float32" if node.attrs.get("stash_type", 1) == 1 else dtype
    working = "float64" if dtype == "float64" else stash
    axes = list(range(node.attrs.get("axis", -1) % x.ty.ndim, x.ty.ndim))
    wide = node.bb.normalize(relax.op.astype(x, working))
    mean = node.bb.emit(relax.op.mean(wide, axes, keepdims=True))
    centred = node.bb.emit(relax.op.subtract(wide, mean))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    inverse = node.bb.emit(
        relax.op.rsqrt(relax.op.add(variance, relax.const(node.attrs.get("epsilon", 1e-5), working)))
    )
    result = relax.op.multiply(relax.op.astype(relax.op.multiply(centred, inverse), dtype), scale)
    result = result if bias is None else relax.op.add(result, bias)
    statistics = [relax.op.astype(each, stash) for each in (mean, inverse)]
    return relax.Tuple([node.bb.emit(each) for each in (result, *statistics)][: node.outputs])


def mean_variance_normalization(node: Node) -> relax.Expr:
    """MeanVarianceNormalization by the squares of the centred numbers.

    ONNX's function subtracts the square of the mean from the mean of the squares, which cancels if the mean is large.
    """
    x, given = node.inputs[0], dtype_of(node.inputs[0])
    working = "float64" if given == "float64" else "float32"
    axes = [axis % len(shape_of(x)) for axis in node.attrs.get("axes", (0, 2, 3))]
    wide = astype(node, x, working)
    centred = node.emit(relax.op.subtract(wide, node.emit(relax.op.mean(wide, axes, keepdims=True))))
    variance = node.emit(relax.op.mean(node.emit(relax.op.multiply(centred, centred)), axes, keepdims=True))
    deviation = node.emit(relax.op.add(node.emit(relax.op.sqrt(variance)), constant(1e-9, working)))
    return astype(node, node.emit(relax.op.divide(centred, deviation)), given)


def rms_normalization(node: Node) -> relax.Expr | None:
    """RMSNormalization over all axes, as simple operators: TVM's operator keeps at least one axis."""
    x, scale = node.inputs[:2]
    if node.attrs.get("axis", -1) % x.ty.ndim:
        return None
    dtype = dtype_of(x)
    working = "float32" if node.attrs.get("stash_type", 1) == 1 else dtype
    wide = astype(node, x, working)
    square = node.emit(relax.op.mean(node.emit(relax.op.multiply(wide, wide)), keepdims=True))
    inverse = relax.op.rsqrt(node.emit(relax.op.add(square, constant(node.attrs.get("epsilon", 1e-5), working))))
    return relax.op.multiply(astype(node, node.emit(relax.op.multiply(wide, inverse)), dtype), scale)


def batch_normalization(node: Node) -> relax.Expr | None:
    """BatchNormalization in training mode: uses the statistics of the batch and returns the running ones."""
    if node.opset < 14 and node.outputs > 1 and not node.attrs.get("is_test", 0):
        raise ValueError("it is in training mode; export the model for inference")
    if not node.attrs.get("training_mode", 0):
        return None
    x, scale, bias, mean, variance = node.inputs
    dtype, rank = dtype_of(x), x.ty.ndim
    working, kept = "float64" if dtype == "float64" else "float32", node.attrs.get("momentum", 0.9)
    axes, column = [axis for axis in range(rank) if axis != 1], [1, -1] + [1] * (rank - 2)
    wide = astype(node, x, working)
    now_mean = node.emit(relax.op.mean(wide, axes, keepdims=True))
    centred = node.emit(relax.op.subtract(wide, now_mean))
    now_variance = node.emit(relax.op.mean(node.emit(relax.op.multiply(centred, centred)), axes, keepdims=True))
    inverse = relax.op.rsqrt(relax.op.add(now_variance, constant(node.attrs.get("epsilon", 1e-5), working)))
    weights = [node.emit(relax.op.reshape(astype(node, each, working), column)) for each in (scale, bias)]
    result = node.emit(relax.op.multiply(node.emit(relax.op.multiply(centred, inverse)), weights[0]))
    results = [astype(node, node.emit(relax.op.add(result, weights[1])), dtype)]
    for old, now in ((mean, now_mean), (variance, now_variance)):
        share = relax.op.multiply(astype(node, old, working), constant(kept, working))
        now = relax.op.multiply(node.emit(relax.op.reshape(now, (-1,))), constant(1 - kept, working))
        results.append(astype(node, node.emit(relax.op.add(share, now)), dtype_of(old)))
    return relax.Tuple(results[: max(node.outputs, 1)])


def dropout(node: Node) -> relax.Expr:
    """Dropout at inference, the identity; random numbers are refused."""
    x, ratio, training = (*node.inputs, None, None)[:3]
    attributes = node.opset < 7 and not node.attrs.get("is_test", 0)
    if attributes or (training is not None and (node.constant(2) is None or node.constant(2).any())):
        ratio = 0.5 if ratio is None else node.constant(1)
        if attributes or ratio is None or np.any(ratio):
            raise ValueError("it may draw random numbers (training_mode); export the model for inference")
    if node.outputs == 1:
        return x
    # Before opset 10 the mask has the type of the data.
    mask = constant(np.ones(shape_of(x)), "bool" if node.opset >= 10 else dtype_of(x))
    return relax.Tuple([x, mask])


CONVERTERS = {
    "BatchNormalization": batch_normalization,
    "Dropout": dropout,
    "MeanVarianceNormalization": mean_variance_normalization,
    "RMSNormalization": rms_normalization,
    "LayerNormalization": layer_normalization,
}
