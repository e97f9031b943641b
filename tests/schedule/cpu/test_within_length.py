# SPDX-License-Identifier: Apache-2.0
"""Attention between the ends of a span: kernels beside numpy, also those that can only read from the first row on."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm.ir.kernel import KEY_AXIS
from smartmem_tvm.schedule.choose import choose
from smartmem_tvm.target import host_target

HEADS, TOKENS, KEYS, DEPTH = 2, 1, 64, 8


def attention(mask: str) -> tvm.tirx.PrimFunc:
    """Return attention with a span as its last input.

    Parameters
    ----------
    mask : str
        ``tensor``, ``number`` (the number of a key is compared), ``map`` (a tensor in rows of 16 keys), or ``whole``
        (a tensor that is also added up for all keys).
    """
    q, k, v = (
        te.placeholder(shape, "float32", name)
        for name, shape in (("q", (HEADS, TOKENS, DEPTH)), ("k", (HEADS, KEYS, DEPTH)), ("v", (HEADS, KEYS, DEPTH)))
    )
    m = te.placeholder((KEYS // 16, 16) if mask == "map" else (KEYS,), "float32", "m")
    span = te.placeholder((2,), "int64", "span")
    d, j, i, n, w = (te.reduce_axis((0, extent)) for extent in (DEPTH, KEYS, KEYS, KEYS, KEYS))
    scores = te.compute((HEADS, TOKENS, KEYS), lambda h, t, s: te.sum(q[h, t, d] * k[h, s, d], d), "scores")
    total = te.compute((1,), lambda _: te.sum(m[w], w), "total") if mask == "whole" else None

    def hidden(s):
        if mask == "number":
            return tirx.Select(tirx.all(s >= 40, s < 52), tirx.const(0.0), tirx.const(-1e30)) + m[s]
        if mask == "whole":
            return m[s] + tirx.max(total[0], tirx.const(0.0))  # 0
        return m[s // 16, s % 16] if mask == "map" else m[s]

    added = te.compute((HEADS, TOKENS, KEYS), lambda h, t, s: scores[h, t, s] + hidden(s), "added")
    most = te.compute((HEADS, TOKENS), lambda h, t: te.max(added[h, t, j], j), "most")
    weights = te.compute((HEADS, TOKENS, KEYS), lambda h, t, s: te.exp(added[h, t, s] - most[h, t]), "weights")
    sums = te.compute((HEADS, TOKENS), lambda h, t: te.sum(weights[h, t, i], i), "sums")
    shares = te.compute((HEADS, TOKENS, KEYS), lambda h, t, s: weights[h, t, s] / sums[h, t], "shares")
    out = te.compute((HEADS, TOKENS, DEPTH), lambda h, t, c: te.sum(shares[h, t, n] * v[h, n, c], n), "out")
    return te.create_prim_func([q, k, v, m, span, out]).with_attrs({KEY_AXIS: [2, 1, 2], "global_symbol": "main"})


@pytest.mark.parametrize(
    ("mask", "reason"),
    (
        ("tensor", ""),
        ("number", "the number of a key is an operand"),
        ("map", "'m' is read through a map"),
        ("whole", "'m' is read for all keys and for each"),
    ),
)
def test_keys_between_the_ends(mask, reason):
    """With NaN in the rows before, where kernels can begin behind them, and in those behind."""
    target, random = host_target(), np.random.default_rng(3)
    with target:
        plan = choose(attention(mask), target).plan
        built = tvm.compile(tvm.IRModule({"main": plan.func}), target=target)
    assert plan.rule == "WithinLength"
    assert plan.notes.get("within_length", {}).get("first_row", "") == (
        f"keys are read from the first row on: {reason}" if reason else ""
    )
    q, k, v = (random.standard_normal((HEADS, rows, DEPTH)).astype("float32") for rows in (TOKENS, KEYS, KEYS))
    numbers = np.arange(KEYS)
    hides = np.where((numbers >= 40) & (numbers < 52), 0, -1e30).astype("float32")
    want = np.zeros((HEADS, TOKENS, DEPTH))
    for h, t in np.ndindex(HEADS, TOKENS):
        e = np.exp(k[h, 40:52] @ q[h, t] - (k[h, 40:52] @ q[h, t]).max())
        want[h, t] = e @ v[h, 40:52] / e.sum()
    begin, end = (0, KEYS) if reason else (36, 52)  # 16 rows are enough for the 12, which would not fit from row 32 on
    for each in (k, v):
        each[:, :begin], each[:, end:] = np.nan, np.nan
    m = np.zeros_like(hides) if mask == "number" else hides.reshape(-1, 16) if mask == "map" else hides
    arrays = [q, k, v, m, np.array([52, KEYS - 40]), np.zeros((HEADS, TOKENS, DEPTH), "float32")]
    tensors = [tvm.runtime.tensor(each) for each in arrays]
    built["main"](*tensors)
    np.testing.assert_allclose(tensors[-1].numpy(), want, rtol=1e-4, atol=1e-5)
