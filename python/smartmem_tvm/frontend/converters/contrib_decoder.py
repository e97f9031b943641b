# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's attention of one new token over a cache allocated for the longest sequence."""

from __future__ import annotations

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.contrib_attention import attend, attention, kept_keys, unpacked
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of, value_of


def decoder_masked_multi_head_attention(node: Node) -> relax.Expr:
    """com.microsoft.DecoderMaskedMultiHeadAttention without beams, over a cache or over another sequence."""
    query, key, value, mask, score_bias, past_key, past_value, at, beams, _, bias = (node.input(n) for n in range(11))
    if beams is not None and (value_of(beams) is None or value_of(beams).max(initial=1) > 1):
        raise ValueError("it decodes several beams; export the decoder without BeamSearch around it")
    if key is not None and len(shape_of(key)) == 4:
        query, key, value = unpacked(node, bias, [query, key, value])
        return attend(node, query, key, value, _filtered(node, mask, query, shape_of(key)[2]))
    if key is None:
        query, key, value = (_part(node, query, place) for place in range(3))
    query, key, value = unpacked(node, bias, [query, key, value])
    if past_key is None or not node.attrs.get("past_present_share_buffer", 0):
        raise ValueError(
            "it has no cache of keys and values that its results take the place of; write MultiHeadAttention"
        )
    at = node.emit(relax.op.reshape(at, (1, 1, 1, 1)))
    keys = shape_of(past_key)[2]
    places = constant(np.arange(keys).reshape(1, 1, keys, 1), dtype_of(at))
    new = node.emit(relax.op.equal(places, at))
    key, value = (node.emit(relax.op.where(new, each, old)) for each, old in ((key, past_key), (value, past_value)))
    dtype = dtype_of(query)
    seen = node.emit(relax.op.less_equal(constant(np.arange(keys).reshape(1, 1, 1, keys), dtype_of(at)), at))
    hidden = node.emit(relax.op.where(seen, constant(0, dtype), constant(np.finfo(dtype).min, dtype)))
    for term in (_filtered(node, mask, query, keys), score_bias):
        if term is not None:
            hidden = node.emit(relax.op.add(hidden, _filled(node, term, keys)))
    result = attend(node, query, key, value, hidden)
    return result if node.outputs == 1 else relax.Tuple([result, key, value][: node.outputs])


def _part(node: Node, packed: relax.Expr, place: int) -> relax.Expr:
    parts = node.emit(relax.op.split(packed, 3, 2))
    return node.emit(parts[place])


def _filtered(node: Node, mask: relax.Expr | None, query: relax.Expr, keys: int) -> relax.Expr | None:
    """Return the term that a mask [batch, keys so far] adds to the scores."""
    if mask is None:
        return None
    batch, dtype = shape_of(query)[0], dtype_of(query)
    kept = kept_keys(node, mask, batch, min(shape_of(mask)[-1], keys))
    filtered = node.attrs.get("mask_filter_value", -10000.0)
    return node.emit(relax.op.where(kept, constant(0, dtype), constant(filtered, dtype)))


def _filled(node: Node, x: relax.Expr, keys: int) -> relax.Expr:
    missing = keys - shape_of(x)[3]
    return x if missing <= 0 else node.emit(relax.op.nn.pad(x, [0] * 7 + [missing]))


def decoder_masked_self_attention(node: Node) -> relax.Expr:
    """com.microsoft.DecoderMaskedSelfAttention with separate tensors for past and present: Attention."""
    return attention(node.with_inputs(*(node.input(at) for at in range(6))))


CONVERTERS = {
    "com.microsoft.DecoderMaskedMultiHeadAttention": decoder_masked_multi_head_attention,
    "com.microsoft.DecoderMaskedSelfAttention": decoder_masked_self_attention,
}
