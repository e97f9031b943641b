# SPDX-License-Identifier: Apache-2.0
"""Attention as tensor expressions with numpy references."""

import numpy as np
from tvm import te, tirx, topi

SCALE = 0.25


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def scores_of(q, k, extra=None):
    """``q k^T * SCALE + extra`` as te: q [heads, rows, depth], k [heads, keys, depth]."""
    (heads, rows, depth), keys = q.shape, k.shape[1]
    d = te.reduce_axis((0, depth), "d")
    scale = tirx.const(SCALE, "float32")
    scores = te.compute((heads, rows, keys), lambda h, i, j: te.sum(q[h, i, d] * scale * k[h, j, d], d), name="scores")
    return scores if extra is None else te.compute(scores.shape, lambda *at: scores[at] + extra[at], name="biased")


def product(p, v):
    heads, rows, keys = p.shape
    j = te.reduce_axis((0, keys), "j")
    return te.compute((heads, rows, v.shape[2]), lambda h, i, c: te.sum(p[h, i, j] * v[h, j, c], j), name="out")


def attention(heads, rows, keys, depth, width, bias):
    """Inputs, output and reference of an attention."""
    shapes = {"q": (heads, rows, depth), "k": (heads, keys, depth), "v": (heads, keys, width)}
    q, k, v = (te.placeholder(shape, name=name) for name, shape in shapes.items())
    extra = [te.placeholder((heads, rows, keys), name="b")] if bias else []
    output = product(topi.nn.softmax(scores_of(q, k, *extra)), v)

    def reference(q, k, v, b=0.0):
        return softmax(q @ k.transpose(0, 2, 1) * SCALE + b) @ v

    return [q, k, v, *extra], output, reference


def causal_attention(heads, rows, depth, masked):
    """Inputs, output and reference of an attention whose scores to later rows are `masked`."""
    q, k, v = (te.placeholder((heads, rows, depth), name=name) for name in "qkv")
    plain = scores_of(q, k)
    low = tirx.const(masked, "float32")
    causal = te.compute(plain.shape, lambda h, i, j: tirx.if_then_else(j <= i, plain[h, i, j], low), name="causal")

    def reference(q, k, v):
        s = q @ k.transpose(0, 2, 1) * SCALE
        return softmax(np.where(np.tri(rows, dtype=bool), s, masked)) @ v

    return [q, k, v], product(topi.nn.softmax(causal), v), reference


def merged_attention(batch, heads, rows, depth):
    """Operands as a projection leaves them, [batch, rows, 3 * heads * depth]; result [batch, rows, heads, depth]."""
    x = te.placeholder((batch, rows, 3 * heads * depth), name="x")
    d, j = te.reduce_axis((0, depth), "d"), te.reduce_axis((0, rows), "j")

    def at(b, i, part, h, c):
        return x[b, i, part * heads * depth + h * depth + c]

    scores = te.compute(
        (batch, heads, rows, rows), lambda b, h, i, k: te.sum(at(b, i, 0, h, d) * at(b, k, 1, h, d), d), name="scores"
    )
    weights = topi.nn.softmax(scores)
    output = te.compute(
        (batch, rows, heads, depth), lambda b, i, h, c: te.sum(weights[b, h, i, j] * at(b, j, 2, h, c), j), name="out"
    )

    def reference(x):
        q, k, v = x.reshape(batch, rows, 3, heads, depth).transpose(2, 0, 3, 1, 4)
        return (softmax(q @ k.transpose(0, 1, 3, 2)) @ v).transpose(0, 2, 1, 3)

    return [x], output, reference


def centred_scores_on_a_grid():
    """Keys on a grid, so that the row of scores has two axes: inputs, output and reference."""
    q, k = te.placeholder((2, 5, 6, 8), name="q"), te.placeholder((2, 3, 4, 8), name="k")
    d, y, x = te.reduce_axis((0, 8), "d"), te.reduce_axis((0, 3), "y"), te.reduce_axis((0, 4), "x")
    s = te.compute((2, 5, 6, 3, 4), lambda b, i, j, m, n: te.sum(q[b, i, j, d] * k[b, m, n, d], d), name="s")
    top = te.compute((2, 5, 6), lambda b, i, j: te.max(s[b, i, j, y, x], [y, x]), name="top")
    output = te.compute(s.shape, lambda b, i, j, m, n: s[b, i, j, m, n] - top[b, i, j], name="shifted")

    def reference(q, k):
        scores = np.einsum("bijd,bmnd->bijmn", q, k)
        return scores - scores.max((3, 4), keepdims=True)

    return [q, k], output, reference
