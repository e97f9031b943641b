# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX Runtime's optimizers (domain com.microsoft): fused products, activations and normalizations.

Each becomes the plain operators that it was fused from, so that the passes optimize it like any other network.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of


def fast_gelu(node: Node) -> relax.Expr:
    """com.microsoft.FastGelu: the tanh approximation of Gelu, after an optional bias."""
    return relax.op.nn.gelu_tanh(_plus(node, node.inputs[0], node.input(1)))


def bias_gelu(node: Node) -> relax.Expr:
    """com.microsoft.BiasGelu: the exact Gelu of a sum."""
    return relax.op.nn.gelu(_plus(node, node.inputs[0], node.inputs[1]))


def gelu(node: Node) -> relax.Expr:
    """com.microsoft.Gelu: the exact Gelu."""
    return relax.op.nn.gelu(node.inputs[0])


def quick_gelu(node: Node) -> relax.Expr:
    """com.microsoft.QuickGelu: ``x * sigmoid(alpha * x)``."""
    x = node.inputs[0]
    scaled = node.emit(relax.op.multiply(x, constant(node.attrs.get("alpha", 1.702), dtype_of(x))))
    return relax.op.multiply(x, node.emit(relax.op.sigmoid(scaled)))


def _plus(node: Node, x: relax.Expr, *terms: relax.Expr | None) -> relax.Expr:
    for term in terms:
        x = x if term is None else node.emit(relax.op.add(x, term))
    return x


def skip_layer_normalization(node: Node) -> relax.Expr:
    """com.microsoft.SkipLayerNormalization; further outputs are the mean, the inverse deviation and the sum."""
    x, skip, gamma, beta = node.inputs[0], node.inputs[1], node.inputs[2], node.input(3)
    total = _plus(node, x, skip, node.input(4))
    epsilon = node.attrs.get("epsilon", 1e-12)
    result = node.call("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    if node.outputs == 1:
        return result
    wide = node.emit(relax.op.astype(total, "float32"))
    mean = node.emit(relax.op.mean(wide, -1, keepdims=True))
    inverse = _inverse_deviation(node, node.emit(relax.op.subtract(wide, mean)), epsilon)
    return relax.Tuple([result, mean, inverse, total][: node.outputs])


def _inverse_deviation(node: Node, x: relax.Expr, epsilon: float) -> relax.Expr:
    mean = relax.op.mean(node.emit(relax.op.multiply(x, x)), -1, keepdims=True)
    return node.emit(relax.op.rsqrt(relax.op.add(mean, constant(epsilon, "float32"))))


def skip_simplified_layer_normalization(node: Node) -> relax.Expr:
    """com.microsoft.SkipSimplifiedLayerNormalization; the fourth output is the sum."""
    x, skip, gamma = node.inputs[:3]
    total = _plus(node, x, skip, node.input(3))
    epsilon = node.attrs.get("epsilon", 1e-12)
    result = node.call("RMSNormalization", total, gamma, axis=-1, epsilon=epsilon)
    if node.outputs == 1:
        return result
    inverse = _inverse_deviation(node, node.emit(relax.op.astype(total, "float32")), epsilon)
    # The mean is 0 here; no kernel of ONNX Runtime writes it.
    return relax.Tuple([result, node.emit(relax.op.zeros_like(inverse)), inverse, total][: node.outputs])


def simplified_layer_normalization(node: Node) -> relax.Expr:
    """SimplifiedLayerNormalization, which ONNX Runtime writes without a domain: RMS normalization."""
    x, scale = node.inputs[:2]
    axis, epsilon = node.attrs.get("axis", -1), node.attrs.get("epsilon", 1e-5)
    result = node.call("RMSNormalization", x, scale, axis=axis, epsilon=epsilon)
    if node.outputs == 1:
        return result
    if axis % len(shape_of(x)) != len(shape_of(x)) - 1:
        raise ValueError("its second output is known for the last axis only")
    wide = node.emit(relax.op.astype(x, "float32"))
    return relax.Tuple([result, _inverse_deviation(node, wide, epsilon)])


def embed_layer_normalization(node: Node) -> relax.Expr:
    """com.microsoft.EmbedLayerNormalization: the normalized sum of word, position and segment embeddings."""
    ids, segments, words, places, segment_table, gamma, beta, mask, position_ids = (node.input(at) for at in range(9))
    tables = [
        None if table is None else lambda indices, table=table: node.call("Gather", table, indices, axis=0)
        for table in (words, places, segment_table)
    ]
    return embedded(node, ids, segments, tables, gamma, beta, mask, position_ids)


def embedded(
    node: Node,
    ids: relax.Expr,
    segments: relax.Expr | None,
    tables: list[Callable[[relax.Expr], relax.Expr] | None],
    gamma: relax.Expr,
    beta: relax.Expr,
    mask: relax.Expr | None,
    position_ids: relax.Expr | None,
) -> relax.Expr:
    """Return the normalized sum of embeddings, the number of ones in each row of the mask, and the sum.

    Parameters
    ----------
    tables
        Functions from indices to the embeddings of words, positions and segments.
    """
    words, places, kinds = tables
    batch, length = shape_of(ids)
    if position_ids is None:
        position_ids = constant(np.arange(length).reshape(1, length), "int32")
    total = node.emit(relax.op.add(words(ids), places(position_ids)))
    if segments is not None:
        total = node.emit(relax.op.add(total, kinds(segments)))
    result = node.call("LayerNormalization", total, gamma, beta, axis=-1, epsilon=node.attrs.get("epsilon", 1e-12))
    if mask is None:
        count = constant(np.zeros(batch), "int32")
    else:
        ones = node.emit(relax.op.astype(relax.op.equal(mask, constant(1, dtype_of(mask))), "int32"))
        count = node.emit(relax.op.sum(ones, 1))
    return relax.Tuple([result, count, total][: node.outputs]) if node.outputs > 1 else result


def fused_mat_mul(node: Node) -> relax.Expr:
    """com.microsoft.FusedMatMul: a scaled product of operands with optionally transposed axes."""
    a, b = (
        _transposed(node, x, node.attrs.get(f"trans{side}", 0), node.attrs.get(f"transBatch{side}", 0))
        for side, x in zip("AB", node.inputs)
    )
    product = node.emit(relax.op.matmul(a, b))
    alpha = node.attrs.get("alpha", 1.0)
    return product if alpha == 1 else relax.op.multiply(product, constant(alpha, dtype_of(product)))


def _transposed(node: Node, x: relax.Expr, matrix: int, batch: int) -> relax.Expr:
    """Transpose the last two axes if `matrix` is set; `batch` moves the first axis before the last one."""
    axes = list(range(len(shape_of(x))))
    if len(axes) < 2 or not (matrix or batch):
        return x
    if batch:
        axes.insert(-1, axes.pop(0))
    if matrix:
        axes[-2:] = axes[:-3:-1]
    return node.emit(relax.op.permute_dims(x, axes))


# Activation of fused operators -> the attributes that its parameters are, in order.
_ACTIVATIONS = {
    "": (),
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "Gelu": (),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}


def activated(node: Node, x: relax.Expr, numbers: tuple[float, ...]) -> relax.Expr:
    """Apply the activation that the attribute ``activation`` names."""
    name = node.text("activation")
    if name not in _ACTIVATIONS:
        raise ValueError(f"its activation is '{name}', and known are {', '.join(filter(None, _ACTIVATIONS))}")
    if name == "Clip":
        low, high = numbers
        return relax.op.minimum(node.emit(relax.op.maximum(x, constant(low, dtype_of(x)))), constant(high, dtype_of(x)))
    return node.call(name, x, **dict(zip(_ACTIVATIONS[name], numbers))) if name else x


def fused_gemm(node: Node) -> relax.Expr:
    """com.microsoft.FusedGemm: Gemm and an activation."""
    kept = {key: node.attrs[key] for key in ("alpha", "beta", "transA", "transB") if key in node.attrs}
    numbers = [node.attrs[key] for key in ("activation_alpha", "activation_beta") if key in node.attrs]
    return activated(node, node.call("Gemm", *node.inputs, **kept), tuple(numbers))


def fused_conv(node: Node) -> relax.Expr:
    """com.microsoft.FusedConv: Conv, the sum with a fourth input, and an activation."""
    kept = {key: value for key, value in node.attrs.items() if not key.startswith(("activation", "tvm_custom"))}
    result = _plus(node, node.call("Conv", *node.inputs[:3], **kept), node.input(3))
    return activated(node, result, tuple(node.attrs.get("activation_params", ())))


CONVERTERS = {
    "SimplifiedLayerNormalization": simplified_layer_normalization,
    "com.microsoft.BiasGelu": bias_gelu,
    "com.microsoft.EmbedLayerNormalization": embed_layer_normalization,
    "com.microsoft.FastGelu": fast_gelu,
    "com.microsoft.FusedConv": fused_conv,
    "com.microsoft.FusedGemm": fused_gemm,
    "com.microsoft.FusedMatMul": fused_mat_mul,
    "com.microsoft.Gelu": gelu,
    "com.microsoft.QuickGelu": quick_gelu,
    "com.microsoft.SimplifiedLayerNormalization": simplified_layer_normalization,
    "com.microsoft.SkipLayerNormalization": skip_layer_normalization,
    "com.microsoft.SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
}
