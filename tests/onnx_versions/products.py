# SPDX-License-Identifier: Apache-2.0
"""Products of matrices, recurrent layers and attention."""

import numpy as np

from onnx_versions.cases import Stated, case, f, p

A, B = f(3, 4), f(4, 5)
case("MatMul", A, B)
case("MatMul", f(2, 3, 4), f(2, 4, 5))
case("MatMul", f(4), B)


def gemm(a, b, c):
    """As the attributes below say."""
    return 0.5 * a.T @ b.T + 2 * c


case("Gemm", A, B, f(3, 5), last=6, want=lambda a, b, c: a @ b + c)
case("Gemm", A, B, f(5), last=6, want=lambda a, b, c: a @ b + c, broadcast=1)
case("Gemm", f(4, 3), f(5, 4), f(5), last=6, want=gemm, broadcast=1, alpha=0.5, beta=2.0, transA=1, transB=1)
case("Gemm", A, B, np.asarray(f()), last=6, want=lambda a, b, c: a @ b + c, broadcast=1)
case("Gemm", f(4, 3), f(5, 4), f(5), first=7, alpha=0.5, beta=2.0, transA=1, transB=1)
case("Gemm", A, B, f(3, 1), first=7)
case("Gemm", A, B, first=11)
case("MatMulInteger", np.arange(12, dtype="uint8").reshape(3, 4), np.arange(20, dtype="uint8").reshape(4, 5))


def gates(op, direction=1, hidden=4, steps=3, batch=2, inputs=5):
    """X, W, R and B of a recurrent layer."""
    n = {"RNN": 1, "GRU": 3, "LSTM": 4}[op] * hidden
    weights = f(direction, n, inputs) * 0.4, f(direction, n, hidden) * 0.4, f(direction, 2 * n) * 0.4
    return [f(steps, batch, inputs), *(Stated(each) for each in weights)]


def logistic(x):
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-x))


def recurrent(op):
    """Y and the last states, forwards and, if there are weights for it, backwards."""

    def step(x, h, c, w, r, b, n):
        if op == "RNN":
            return np.tanh(x @ w.T + h @ r.T + b[:n] + b[n:]), c
        if op == "LSTM":
            i, o, g, k = np.split(x @ w.T + h @ r.T + b[: 4 * n] + b[4 * n :], 4, 1)
            c = logistic(g) * c + logistic(i) * np.tanh(k)
            return logistic(o) * np.tanh(c), c
        (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
        bz, br, bh, cz, cr, ch = np.split(b, 6)
        z, s = logistic(x @ wz.T + h @ rz.T + bz + cz), logistic(x @ wr.T + h @ rr.T + br + cr)
        return (1 - z) * np.tanh(x @ wh.T + (s * h) @ rh.T + bh + ch) + z * h, c

    def compute(x, w, r, b):
        ys, hs, cs = [], [], []
        for turn in range(len(w)):
            n = r.shape[2]
            h = c = np.zeros((x.shape[1], n), "f4")
            rows = []
            for each in x[::-1] if turn else x:
                h, c = step(each, h, c, w[turn], r[turn], b[turn], n)
                rows.append(h)
            ys.append(np.stack(rows[::-1] if turn else rows))
            hs.append(h)
            cs.append(c)
        return [np.stack(ys, 1), np.stack(hs), np.stack(cs)][: 3 if op == "LSTM" else 2]

    return compute


for op in ("RNN", "GRU", "LSTM"):
    outputs = 3 if op == "LSTM" else 2
    case(op, *gates(op), last=6, outputs=outputs, want=recurrent(op), hidden_size=4, output_sequence=1)
    case(op, *gates(op, 2), last=6, outputs=outputs, want=recurrent(op), hidden_size=4, output_sequence=1,
         direction="bidirectional")  # fmt: skip
    case(op, *gates(op), first=7, outputs=outputs, hidden_size=4)
    case(op, *gates(op, 2), first=7, outputs=outputs, hidden_size=4, direction="bidirectional")
    case(op, *gates(op), first=14, outputs=outputs, hidden_size=4, layout=0)
Q, K = f(2, 3, 4, 8), f(2, 3, 6, 8)
case("Attention", Q, K, f(2, 3, 6, 8))
case("Attention", f(2, 4, 24), f(2, 6, 24), f(2, 6, 24), q_num_heads=3, kv_num_heads=3, is_causal=1)
case("RotaryEmbedding", f(2, 3, 4, 8), f(2, 4, 4), f(2, 4, 4))
case("LinearAttention", f(2, 4, 6), f(2, 4, 6), f(2, 4, 6), outputs=2, q_num_heads=2, kv_num_heads=2,
     update_rule="linear", scale=1.0)  # fmt: skip
case("SwiGLU", f(3, 4), p(3, 4))
