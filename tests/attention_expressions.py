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
