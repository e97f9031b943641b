# SPDX-License-Identifier: Apache-2.0
"""Attention in float16 as tensor expressions, in the forms that `ComputeHalf` makes, with a reference."""

import numpy as np
from tvm import te, tirx


def half_attention(shape, change=None, more=(), normalised=False, guarded=False, after=None):
    """A kernel of (batch, rows, keys, depth, width), and its inputs.

    Parameters
    ----------
    change : callable, optional
        ``(score as a half, batch, row, key, *more) -> operand of the softmax``.
    normalised, guarded : bool
        Weights are divided before the second product; zero replaces weights that are NaN.
    after : callable, optional
        ``(result as a half, batch, row, column, *more) -> value``.
    """
    batch, rows, keys, depth, width = shape
    q, k = te.placeholder((batch, rows, depth), "float16", "q"), te.placeholder((batch, keys, depth), "float16", "k")
    v, scores, line = te.placeholder((batch, keys, width), "float16", "v"), (batch, rows, keys), (batch, rows)
    d, j1, j2, j3 = (te.reduce_axis((0, extent)) for extent in (depth, keys, keys, keys))
    s = te.compute(scores, lambda b, i, j: te.sum((q[b, i, d] * k[b, j, d]).astype("float32"), d), "s")

    def of(b, i, j):
        score = s[b, i, j].astype("float16")
        return score if change is None else change(score, b, i, j, *more)

    f = te.compute(scores, of, "f")
    top = te.compute(line, lambda b, i: te.max(f[b, i, j1], j1), "top")
    e = te.compute(scores, lambda b, i, j: tirx.exp(f[b, i, j] - top[b, i]), "e")
    total = te.compute(line, lambda b, i: te.sum(e[b, i, j2].astype("float32"), j2), "total")

    def weight(b, i, j):
        quotient = e[b, i, j].astype("float32") / total[b, i]
        return tirx.Select(tirx.isnan(quotient), tirx.const(0, "float32"), quotient) if guarded else quotient

    def term(b, i, c):
        if normalised:
            return w[b, i, j3] * v[b, j3, c].astype("float32")
        return (e[b, i, j3] * v[b, j3, c]).astype("float32")

    w = te.compute(scores, weight, "w") if normalised else None
    o = te.compute((batch, rows, width), lambda b, i, c: te.sum(term(b, i, c), j3), "o")

    def out(b, i, c):
        value = (o[b, i, c] if normalised else o[b, i, c] / total[b, i]).astype("float16")
        return value if after is None else after(value, b, i, c, *more)

    return te.create_prim_func([q, k, v, *more, te.compute(o.shape, out, "out")])


def reference(q, k, v, change=lambda s: s):
    """Compute the same in float64; rows whose weights are NaN are zeros."""
    q, k, v = (each.astype("float64") for each in (q, k, v))
    s = change(q @ k.swapaxes(1, 2))
    with np.errstate(invalid="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True))
        return np.nan_to_num(e / e.sum(-1, keepdims=True)) @ v
