# SPDX-License-Identifier: Apache-2.0
"""Transformer operators with 8-bit weights, and sums and products of bytes (domain com.microsoft)."""

from __future__ import annotations

from tvm import relax

from smartmem_tvm.frontend.converters.contrib import embedded
from smartmem_tvm.frontend.converters.contrib_attention import attention_of
from smartmem_tvm.frontend.converters.integer_products import scaled_product
from smartmem_tvm.frontend.converters.node import Node, shape_of
from smartmem_tvm.frontend.converters.quantization import centred, dequantized, saturated


def q_attention(node: Node) -> relax.Expr:
    """com.microsoft.QAttention: Attention whose projections multiply bytes."""
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (node.input(at) for at in range(9))
    product = node.emit(scaled_product(node, (x, x_scale, x_zero), (weights, w_scale, w_zero), bias))
    return attention_of(node, product, [shape_of(product)[2] // 3] * 3, mask, past, None)


def q_embed_layer_normalization(node: Node) -> relax.Expr:
    """com.microsoft.QEmbedLayerNormalization: embeddings gathered from tables of bytes and dequantized."""
    ids, segments, words, places, segment_table, gamma, beta, mask = (node.input(at) for at in range(8))
    # Scales begin at input 8 and zero points at 13: words, places, segments, gamma, beta.
    parameters = [(node.input(8 + at), node.input(13 + at)) for at in range(5)]
    gamma, beta = (dequantized(node, each, *parameters[at]) for each, at in ((gamma, 3), (beta, 4)))
    tables = [
        None
        if table is None
        else lambda indices, table=table, at=at: dequantized(
            node, node.call("Gather", table, indices, axis=0), *parameters[at]
        )
        for at, table in enumerate((words, places, segment_table))
    ]
    return embedded(node, ids, segments, tables, gamma, beta, mask, None)


def qlinear_reduce_mean(node: Node) -> relax.Expr:
    """com.microsoft.QLinearReduceMean: the mean of the dequantized bytes."""
    x, scale, zero, y_scale, y_zero = (node.input(at) for at in range(5))
    wide = dequantized(node, x, scale, zero)
    mean = node.emit(relax.op.mean(wide, list(node.attrs["axes"]), bool(node.attrs["keepdims"])))
    y_scale, y_zero = (None if each is None else node.reshape(each, ()) for each in (y_scale, y_zero))
    return saturated(node, mean, y_scale, y_zero, node.type_of(0))


def mul_integer(node: Node) -> relax.Expr:
    """com.microsoft.MulInteger: products of bytes minus their zero points, as int32."""
    a, a_zero, b, b_zero = (node.input(at) for at in range(4))
    return node.apply("multiply", centred(node, a, a_zero), centred(node, b, b_zero))


def reduce_sum_integer(node: Node) -> relax.Expr:
    """com.microsoft.ReduceSumInteger: sums of signed bytes as int32, of unsigned bytes as uint32."""
    x = node.inputs[0]
    wide = node.astype(x, "int32" if node.type_of(0).startswith("int") else "uint32")
    return relax.op.sum(wide, list(node.attrs["axes"]), bool(node.attrs["keepdims"]))


CONVERTERS = {
    "com.microsoft.MulInteger": mul_integer,
    "com.microsoft.QAttention": q_attention,
    "com.microsoft.QEmbedLayerNormalization": q_embed_layer_normalization,
    "com.microsoft.QLinearReduceMean": qlinear_reduce_mean,
    "com.microsoft.ReduceSumInteger": reduce_sum_integer,
}
