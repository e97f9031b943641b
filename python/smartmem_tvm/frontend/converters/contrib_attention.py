# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's attention: Attention, MultiHeadAttention and GroupQueryAttention of the domain com.microsoft.

Each becomes a product, a softmax and a product over heads::

    query [batch, heads, rows, size]    key, value [batch, heads, keys, size]    bias broadcasts to the scores
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.contrib_cache import key_positions, past_lengths, with_past
from smartmem_tvm.frontend.converters.contrib_rotary import rotated
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of

_Bias = relax.Expr | None


def attention(node: Node) -> relax.Expr:
    """com.microsoft.Attention: the projections of queries, keys and values are part of it."""
    x, weights, bias, mask, past, score_bias = (node.input(position) for position in range(6))
    if node.input(6) is not None:
        raise ValueError("its past and its present share a buffer, and here each tensor has its own")
    product = node.emit(relax.op.matmul(x, weights))
    product = product if bias is None else node.emit(relax.op.add(product, bias))
    sizes = list(node.attrs.get("qkv_hidden_sizes", [shape_of(weights)[1] // 3] * 3))
    return attention_of(node, product, sizes, mask, past, score_bias)


def attention_of(
    node: Node, product: relax.Expr, sizes: Sequence[int], mask: _Bias, past: _Bias, score_bias: _Bias
) -> relax.Expr:
    """Convert attention after its projections, [batch, rows, queries and keys and values] of widths `sizes`.

    Parameters
    ----------
    past
        [2, batch, heads, keys, size]: the keys and values before the new ones.
    """
    if node.attrs.get("past_present_share_buffer", 0):
        raise ValueError("its past and its present share a buffer, and here each tensor has its own")
    if node.attrs.get("do_rotary", 0):
        raise ValueError("it rotates without tables (do_rotary); export RotaryEmbedding nodes instead")
    if node.outputs > 1 and sizes[1] != sizes[2]:
        raise ValueError(
            f"its present is asked for, of keys of {sizes[1]} and values of {sizes[2]}: they are one tensor"
        )
    ends = [sizes[0], sizes[0] + sizes[1]]
    parts = node.emit(relax.op.split(product, ends, 2))
    query, key, value = (heads_of(node, node.emit(parts[at]), node.attrs["num_heads"]) for at in range(3))
    before = 0 if past is None else shape_of(past)[3]
    if past is not None:
        old = node.emit(relax.op.split(past, 2, 0))
        old = [node.emit(relax.op.squeeze(node.emit(old[at]), 0)) for at in range(2)]
        key, value = (node.emit(relax.op.concat(pair, 2)) for pair in zip(old, (key, value)))
    result = attend(node, query, key, value, _masks(node, query, key, mask, score_bias, before))
    if node.outputs == 1:
        return result
    return relax.Tuple([result, node.emit(relax.op.stack([key, value], 0))])


def multi_head_attention(node: Node) -> relax.Expr:
    """com.microsoft.MultiHeadAttention with any packing, mask and past."""
    _, _, _, bias, mask, score_bias, past_key, past_value, shared, indirection = (node.input(at) for at in range(10))
    if shared is not None or indirection is not None:
        raise ValueError("its past and its present share a buffer, and here each tensor has its own")
    if node.outputs > 3:
        raise ValueError("its scores are asked for (output 3), which stay on chip")
    query, key, value = unpacked(node, bias, [node.input(at) for at in range(3)])
    before = 0 if past_key is None else shape_of(past_key)[2]
    if past_key is not None:
        key, value = (node.emit(relax.op.concat(pair, 2)) for pair in ((past_key, key), (past_value, value)))
    result = attend(node, query, key, value, _masks(node, query, key, mask, score_bias, before))
    return result if node.outputs == 1 else relax.Tuple([result, key, value][: node.outputs])


def unpacked(node: Node, bias: _Bias, given: Sequence[relax.Expr | None]) -> list[relax.Expr]:
    """Split one, two or three tensors into heads of queries, keys and values.

    Keys and values that are already split into heads, like those of another sequence, get no bias.
    """
    query, key, value = given
    heads = node.attrs["num_heads"]
    if key is None:  # [batch, rows, heads, 3, size]
        tensors = _apart(node, query, 3)
    elif value is None:  # [batch, keys, heads, 2, size]
        tensors = [query, *_apart(node, key, 2)]
    else:
        tensors = [query, key, value]
    if bias is not None:
        tensors = _with_biases(node, tensors, bias)
    return [heads_of(node, each, heads) for each in tensors]


def _with_biases(node: Node, tensors: list[relax.Expr], bias: relax.Expr) -> list[relax.Expr]:
    """Add to each tensor its part of the bias, unless it is already split into heads."""
    widths = [shape_of(each)[-1] * (shape_of(each)[1] if len(shape_of(each)) == 4 else 1) for each in tensors]
    biases = node.emit(relax.op.split(bias, [widths[0], widths[0] + widths[1]], 0))
    return [
        each if len(shape_of(each)) == 4 else node.emit(relax.op.add(each, node.emit(biases[at])))
        for at, each in enumerate(tensors)
    ]


def _apart(node: Node, packed: relax.Expr, count: int) -> list[relax.Expr]:
    """Split [batch, rows, heads, count, size] into `count` tensors [batch, rows, heads * size]."""
    batch, rows, heads, _, size = shape_of(packed)
    parts = node.emit(relax.op.split(packed, count, 3))
    return [node.emit(relax.op.reshape(node.emit(parts[at]), (batch, rows, heads * size))) for at in range(count)]


def heads_of(node: Node, x: relax.Expr, heads: int) -> relax.Expr:
    """Return [batch, rows, heads * size] as [batch, heads, rows, size]; four dimensions are already split."""
    if len(shape_of(x)) == 4:
        return x
    batch, rows, width = shape_of(x)
    split = node.emit(relax.op.reshape(x, (batch, rows, heads, width // heads)))
    return node.emit(relax.op.permute_dims(split, (0, 2, 1, 3)))


def _masks(node: Node, query: relax.Expr, key: relax.Expr, mask: _Bias, score_bias: _Bias, before: int) -> _Bias:
    """Return the sum to add to the scores: a bias, the mask, and the causal mask.

    The first row belongs to key number `before`.
    """
    rows, keys, dtype = shape_of(query)[2], shape_of(key)[2], dtype_of(query)
    terms = [score_bias]
    if mask is not None:
        filtered = node.attrs.get("mask_filter_value", -10000.0)
        kept = kept_keys(node, mask, shape_of(query)[0], keys)
        terms.append(node.emit(relax.op.where(kept, constant(0, dtype), constant(filtered, dtype))))
    if node.attrs.get("unidirectional", 0) and rows > 1:
        if rows + before != keys:
            raise ValueError(f"rows do not look ahead (unidirectional), but {rows} rows meet {keys - before} new keys")
        ahead = np.triu(np.ones((rows, keys), bool), before + 1)
        terms.append(constant(np.where(ahead, np.finfo(dtype).min, 0), dtype))
    terms = [term for term in terms if term is not None]
    total = terms[0] if terms else None
    for term in terms[1:]:
        total = node.emit(relax.op.add(total, term))
    return total


def kept_keys(node: Node, mask: relax.Expr, batch: int, keys: int) -> relax.Expr:
    """Return the keys that count as a boolean that broadcasts to [batch, heads, rows, keys].

    The mask has a number for each key, or for each row and key, or the end of the keys of each batch, or their ends and
    beginnings.
    """
    shape = shape_of(mask)
    if len(shape) == 1 and shape[0] in (batch, 2 * batch):
        places = constant(np.arange(keys).reshape(1, 1, 1, keys), dtype_of(mask))
        ends = node.emit(relax.op.reshape(mask, (-1, batch, 1, 1, 1)))
        edges = [
            node.emit(relax.op.take(ends, constant(at, "int64"), 0, mode="clip")) for at in range(shape[0] // batch)
        ]
        kept = node.emit(relax.op.less(places, edges[0]))
        if len(edges) == 1:
            return kept
        return node.emit(relax.op.logical_and(kept, relax.op.greater_equal(places, edges[1])))
    if shape[-1] != keys or len(shape) not in (2, 3) or shape[0] != batch:
        raise ValueError(f"its mask has shape {shape}, which is none of those for {batch} batches of {keys} keys")
    mask = node.emit(relax.op.reshape(mask, (batch, 1, 1 if len(shape) == 2 else shape[1], keys)))
    return node.emit(relax.op.greater(mask, constant(0, dtype_of(mask))))


def attend(
    node: Node,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    bias: _Bias,
    softcap: float = 0,
    sink: relax.Expr | None = None,
) -> relax.Expr:
    """Return ``softmax(query @ key^T * scale + bias) @ value`` as [batch, rows, heads * size].

    Parameters
    ----------
    sink
        For each head, the score of a key without a value (attention sink).
    """
    batch, heads, rows, size = shape_of(query)
    key, value = (_repeated(node, each, heads) for each in (key, value))
    dtype = dtype_of(query)
    scale = node.attrs.get("scale", 0.0) or 1 / math.sqrt(size)
    scores = node.emit(relax.op.matmul(query, node.emit(relax.op.permute_dims(key, (0, 1, 3, 2)))))
    scores = node.emit(relax.op.multiply(scores, constant(scale, dtype)))
    if softcap:
        small = node.emit(relax.op.tanh(relax.op.divide(scores, constant(softcap, dtype))))
        scores = node.emit(relax.op.multiply(small, constant(softcap, dtype)))
    scores = scores if bias is None else node.emit(relax.op.add(scores, bias))
    shares = _shares(node, scores, sink)
    weighted = node.emit(relax.op.matmul(shares, value))
    rows_first = node.emit(relax.op.permute_dims(weighted, (0, 2, 1, 3)))
    return node.emit(relax.op.reshape(rows_first, (batch, rows, heads * shape_of(value)[3])))


def _shares(node: Node, scores: relax.Expr, sink: relax.Expr | None) -> relax.Expr:
    if sink is None:
        return node.emit(relax.op.nn.softmax(scores, -1))
    batch, heads, rows, keys = shape_of(scores)
    column = node.emit(relax.op.broadcast_to(node.reshape(sink, (1, heads, 1, 1)), (batch, heads, rows, 1)))
    shares = node.emit(relax.op.nn.softmax(node.emit(relax.op.concat([scores, column], 3)), -1))
    return node.emit(relax.op.strided_slice(shares, [3], [0], [keys]))


def _repeated(node: Node, x: relax.Expr, heads: int) -> relax.Expr:
    """Repeat each head of keys or values for the neighbouring query heads that share it."""
    batch, own, rows, size = shape_of(x)
    if own == heads:
        return x
    x = node.emit(relax.op.reshape(x, (batch, own, 1, rows, size)))
    x = node.emit(relax.op.broadcast_to(x, (batch, own, heads // own, rows, size)))
    return node.emit(relax.op.reshape(x, (batch, heads, rows, size)))


def group_query_attention(node: Node) -> relax.Expr:
    """com.microsoft.GroupQueryAttention: causal, with lengths ``seqlens_k``; the cache holds rotated keys."""
    query, key, value = _normalized(node, _grouped(node))
    past_key, past_value, lengths, total = (node.input(at) for at in (3, 4, 5, 6))
    total = node.constant(6)
    if total is None:
        raise ValueError("its total_sequence_length is known at run time only, and shapes are static; make it constant")
    rows, total = shape_of(query)[2], int(total.reshape(-1)[0])
    past = past_lengths(node, lengths, rows, total)
    if node.attrs.get("do_rotary", 0):
        positions = node.input(9) if node.input(9) is not None else key_positions(node, past, lengths, rows)
        tables = node.inputs[7], node.inputs[8], bool(node.attrs.get("rotary_interleaved", 0))
        query, key = (rotated(node, each, positions, *tables) for each in (query, key))
    key, value = (with_past(node, old, new, past, total) for old, new in ((past_key, key), (past_value, value)))
    bias = _causal(node, past, rows, shape_of(key)[2], dtype_of(query))
    if node.input(10) is not None:
        bias = node.emit(relax.op.add(bias, _widened(node, node.inputs[10], shape_of(key)[2])))
    sink = node.input(11)
    if sink is None and node.attrs.get("smooth_softmax", 0) > 0:
        sink = constant(np.zeros(node.attrs["num_heads"]), dtype_of(query))
    result = attend(node, query, key, value, bias, node.attrs.get("softcap", 0.0), sink)
    return result if node.outputs == 1 else relax.Tuple([result, key, value][: node.outputs])


def _normalized(node: Node, tensors: list[relax.Expr]) -> list[relax.Expr]:
    """Normalize queries and keys by the root mean square of each head, if the node has weights for it."""
    query, key, value = tensors
    both = node.attrs.get("qk_norm_epsilon", 1e-6)
    for_query, for_key = (node.attrs.get(f"{name}_norm_epsilon", both) for name in "qk")
    if node.input(14) is not None:
        query = node.call("RMSNormalization", query, node.inputs[14], axis=-1, epsilon=for_query)
    if node.input(15) is not None:
        key = node.call("RMSNormalization", key, node.inputs[15], axis=-1, epsilon=for_key)
    return [query, key, value]


def _grouped(node: Node) -> list[relax.Expr]:
    """Split one tensor or three into heads of queries, keys and values."""
    heads, own = node.attrs["num_heads"], node.attrs["kv_num_heads"]
    query, key, value = (node.input(at) for at in range(3))
    if key is None:
        size = shape_of(query)[2] // (heads + 2 * own)
        parts = node.emit(relax.op.split(query, [heads * size, (heads + own) * size], 2))
        query, key, value = (node.emit(parts[at]) for at in range(3))
    return [heads_of(node, query, heads), heads_of(node, key, own), heads_of(node, value, own)]


def _causal(node: Node, past: relax.Expr, rows: int, keys: int, dtype: str) -> relax.Expr:
    """Return [batch, 1, rows, keys] to add: the lowest number for keys after a row or before its window."""
    own = relax.op.add(past, constant(np.arange(rows).reshape(1, 1, rows, 1), "int32"))
    ahead = node.emit(relax.op.subtract(constant(np.arange(keys).reshape(1, 1, 1, keys), "int32"), own))
    if node.attrs.get("causal", 1):
        seen = relax.op.less_equal(ahead, constant(0, "int32"))
    else:  # all keys of its own batch
        after = constant(np.arange(rows)[::-1].reshape(1, 1, rows, 1), "int32")
        seen = relax.op.less_equal(ahead, after)
    window = node.attrs.get("local_window_size", -1)
    if window > 0:
        seen = relax.op.logical_and(seen, relax.op.greater(ahead, constant(-window, "int32")))
    return node.emit(relax.op.where(node.emit(seen), constant(0, dtype), constant(np.finfo(dtype).min, dtype)))


def _widened(node: Node, bias: relax.Expr, keys: int) -> relax.Expr:
    """Extend a bias with zeros for further keys."""
    missing = keys - shape_of(bias)[3]
    return bias if missing <= 0 else node.emit(relax.op.nn.pad(bias, [0] * 7 + [missing]))


CONVERTERS = {
    "com.microsoft.Attention": attention,
    "com.microsoft.GroupQueryAttention": group_query_attention,
    "com.microsoft.MultiHeadAttention": multi_head_attention,
}
