# SPDX-License-Identifier: Apache-2.0
"""Attention of sequences packed without padding, as ONNX Runtime packs them.

The tokens of all sequences are consecutive rows. ``token_offset`` has the row of each token in the padded batch,
followed by the rows of the padding; ``cumulative_sequence_length`` has the beginning of each sequence.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.contrib_attention import attend, heads_of
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of


def packed_attention(node: Node) -> relax.Expr:
    """com.microsoft.PackedAttention: the projections of queries, keys and values are part of it."""
    x, weights, bias, offsets, ends, score_bias = (node.input(at) for at in range(6))
    product = node.emit(relax.op.add(node.emit(relax.op.matmul(x, weights)), bias))
    sizes = list(node.attrs.get("qkv_hidden_sizes", [shape_of(weights)[1] // 3] * 3))
    parts = node.emit(relax.op.split(product, [sizes[0], sizes[0] + sizes[1]], 1))
    return _attention(node, [node.emit(parts[at]) for at in range(3)], offsets, ends, score_bias)


def packed_multi_head_attention(node: Node) -> relax.Expr:
    """com.microsoft.PackedMultiHeadAttention of one tensor of heads or of three."""
    query, key, value, bias, offsets, ends, score_bias = (node.input(at) for at in range(7))
    if key is None:  # [tokens, heads, 3, size]
        tokens, heads, _, size = shape_of(query)
        parts = node.emit(relax.op.split(query, 3, 2))
        tensors = [node.emit(relax.op.reshape(node.emit(parts[at]), (tokens, heads * size))) for at in range(3)]
    else:
        tensors = [query, key, value]
    if bias is not None:
        widths = np.cumsum([shape_of(each)[1] for each in tensors])[:2]
        biases = node.emit(relax.op.split(bias, [int(each) for each in widths], 0))
        tensors = [node.emit(relax.op.add(each, node.emit(biases[at]))) for at, each in enumerate(tensors)]
    return _attention(node, tensors, offsets, ends, score_bias)


def _attention(node: Node, tensors: list[relax.Expr], offsets: relax.Expr, ends: relax.Expr, score_bias) -> relax.Expr:
    """Compute attention of the padded batch with the padding masked, and return the rows of its tokens."""
    (batch, length), tokens, dtype = shape_of(offsets), shape_of(tensors[0])[0], dtype_of(tensors[0])
    begins, stops = (
        node.emit(relax.op.reshape(node.emit(relax.op.strided_slice(ends, [0], [at], [at + batch])), (batch, 1)))
        for at in (0, 1)
    )
    places = node.emit(relax.op.add(begins, constant(np.arange(length)[None], dtype_of(ends))))
    rows = node.emit(relax.op.minimum(places, constant(tokens - 1, dtype_of(ends))))
    padded = [node.emit(relax.op.take(each, rows, 0, mode="clip")) for each in tensors]
    query, key, value = (heads_of(node, each, node.attrs["num_heads"]) for each in padded)
    kept = node.emit(relax.op.reshape(node.emit(relax.op.less(places, stops)), (batch, 1, 1, length)))
    filtered = constant(np.finfo(dtype).min, dtype)
    bias = node.emit(relax.op.where(kept, constant(0, dtype), filtered))
    bias = bias if score_bias is None else node.emit(relax.op.add(bias, score_bias))
    result = attend(node, query, key, value, bias)
    flat = node.emit(relax.op.reshape(result, (batch * length, shape_of(result)[2])))
    return relax.op.take(flat, _tokens(node, offsets, tokens), 0, mode="clip")


def _tokens(node: Node, offsets: relax.Expr, tokens: int) -> relax.Expr:
    """Return the rows of the tokens in the padded batch."""
    batch, length = shape_of(offsets)
    flat = node.emit(relax.op.reshape(offsets, (batch * length,)))
    return node.emit(relax.op.strided_slice(flat, [0], [0], [tokens]))


def restore_padding(node: Node) -> relax.Expr:
    """com.microsoft.RestorePadding: scatter the tokens into the padded batch, with zeros elsewhere."""
    x, offsets = node.inputs[:2]
    (tokens, width), (batch, length) = shape_of(x), shape_of(offsets)
    places = node.emit(relax.op.reshape(_tokens(node, offsets, tokens), (tokens, 1)))
    zeros = constant(np.zeros((batch * length, width)), dtype_of(x))
    filled = node.call("ScatterND", zeros, node.emit(relax.op.astype(places, "int64")), x)
    return relax.op.reshape(filled, (batch, length, width))


CONVERTERS = {
    "com.microsoft.PackedAttention": packed_attention,
    "com.microsoft.PackedMultiHeadAttention": packed_multi_head_attention,
    "com.microsoft.RestorePadding": restore_padding,
}
