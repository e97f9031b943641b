# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's relative position biases, which are added to the scores of attention."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.contrib_attention import heads_of
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of


def relative_position_bias(node: Node) -> relax.Expr:
    """com.microsoft.RelativePositionBias: a number for each head and bucket of distances, as in T5.

    The table is stored by columns: the numbers of a head are contiguous in memory.
    """
    table = node.inputs[0]
    lengths = [node.constant(at) for at in (1, 2)]
    if any(each is None for each in lengths):
        raise ValueError("its query_length or key_length is known at run time only, and shapes are static")
    buckets, heads = shape_of(table)
    rows, keys = (int(each.reshape(-1)[0]) for each in lengths)
    chosen = _buckets(rows, keys, buckets, bool(node.attrs.get("is_bidirectional", 0)), node.attrs["max_distance"])
    of_heads = node.emit(relax.op.reshape(table, (1, heads, buckets)))
    return relax.op.take(of_heads, constant(chosen, "int64"), 2, mode="clip")


def _buckets(rows: int, keys: int, buckets: int, both: bool, farthest: int) -> np.ndarray:
    """Return the bucket of each pair [row, key]: small distances have their own, larger ones share by the logarithm."""
    ahead = np.arange(keys)[None] - np.arange(rows)[:, None]
    first = 0
    if both:
        buckets //= 2
        first = np.where(ahead > 0, buckets, 0)
    apart, exact = np.abs(ahead), buckets // 2
    with np.errstate(divide="ignore"):
        grown = np.log(apart.astype("float32") / np.float32(exact)) / np.float32(math.log(farthest / exact))
    far = np.maximum(grown * np.float32(buckets - exact), 0).astype("int64") + exact
    return first + np.where(apart < exact, apart, np.minimum(far, buckets - 1))


def gated_relative_position_bias(node: Node) -> relax.Expr:
    """com.microsoft.GatedRelativePositionBias: a bias that the queries scale, as in WavLM."""
    query, query_bias, distances, weight, bias, eco = node.inputs[:6]
    heads, dtype = node.attrs["num_heads"], dtype_of(query)
    query = heads_of(node, node.emit(relax.op.add(query, query_bias)), heads)
    linear = node.emit(relax.op.add(node.emit(relax.op.matmul(query, weight)), bias))
    batch, _, rows, width = shape_of(linear)
    pairs = node.emit(relax.op.reshape(linear, (batch, heads, rows, 2, width // 2)))
    gates = node.emit(relax.op.sigmoid(node.emit(relax.op.sum(pairs, -1))))
    parts = node.emit(relax.op.split(gates, 2, -1))
    update, reset = node.emit(parts[0]), node.emit(parts[1])
    reset = node.emit(relax.op.subtract(node.emit(relax.op.multiply(reset, eco)), constant(1, dtype)))
    gate = node.emit(relax.op.add(node.emit(relax.op.multiply(update, reset)), constant(2, dtype)))
    return relax.op.multiply(gate, distances)


CONVERTERS = {
    "com.microsoft.GatedRelativePositionBias": gated_relative_position_bias,
    "com.microsoft.RelativePositionBias": relative_position_bias,
}
