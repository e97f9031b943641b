# SPDX-License-Identifier: Apache-2.0
"""Numbers at the edges of short types: what the passes leave of a network is run on a CPU, beside numpy in float64."""

import numpy as np
import pytest
import tvm
from tvm import relax

from covering import pairs
from helpers import module, op, run
from smartmem_tvm import Options, optimize
from smartmem_tvm.ir.graph import read_log

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
AMPERE = tvm.target.Target({**FACTS, "arch": "sm_80"}, host="llvm")
TOLERANCE = {"half-storage": 3e-3, "half": 1e-2, "bfloat16": 5e-2, "tf32": 5e-3}
SHORT = pytest.mark.parametrize("precision", TOLERANCE)
LARGE = 60000.0


def graph_in(precision, build, *shapes):
    return optimize(module(build, *shapes), AMPERE, Options(precision=precision))


def check(precision, build, expected, *arrays):
    """The numbers that numpy finds; where these are finite, nothing else is."""
    mod = graph_in(precision, build, *(array.shape for array in arrays))
    (got,) = run(mod, *(array.astype("float32") for array in arrays))
    want = expected(*(array.astype("float64") for array in arrays))
    assert np.isfinite(got).all() == np.isfinite(want).all()
    assert np.abs(got - want).max() <= TOLERANCE[precision] * np.abs(want).max()
    return mod


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def layer_norm(x, features):
    ones, zeros = (relax.const(np.full(features, value, "float32")) for value in (1, 0))
    return op.nn.layer_norm(x, ones, zeros, axes=[-1], epsilon=1e-5)


def half(x):
    return op.multiply(x, relax.const(0.5))


@SHORT
def test_activations_near_the_end_of_halfs_range(precision):
    """Half of them, their norms and their softmax: the squares, and the sums, are beyond that range."""
    x = LARGE * np.sign(drawn(7, 96)) * np.random.default_rng(1).uniform(0.9, 1.09, (7, 96))
    check(precision, lambda v: half(op.nn.relu(v)), lambda v: np.maximum(v, 0) / 2, x)
    check(precision, lambda v: layer_norm(op.nn.relu(half(v)), 96), lambda v: norm(np.maximum(v / 2, 0)), x)
    check(precision, lambda v: op.mean(op.nn.relu(v), axis=[-1]), lambda v: np.maximum(v, 0).mean(-1), x)


@SHORT
def test_products_of_large_and_small_numbers(precision):
    x, w = LARGE * drawn(9, 64) / 4, drawn(64, 33, seed=1) / 300
    weight = relax.const(w.astype("float32"))
    check(precision, lambda v: half(op.matmul(op.nn.relu(v), weight)), lambda v: np.maximum(v, 0) @ w / 2, x)


MASKS = {"1e9": -1e9, "infinity": -np.inf, "half": -65504.0, "float32": float(np.finfo("float32").min)}


def masked(scores, mask, precision):
    """The sum in the type that it is added up in: what the mask's numbers have no digits for is lost there too."""
    dtype = "float16" if precision == "half" else "float32"
    if dtype == "float16" and np.isfinite(mask).all():
        mask = np.clip(mask, -65504, 65504)
    return (scores.astype(dtype) + mask.astype(dtype)).astype("float64")


@pytest.mark.parametrize(
    ("number", "precision", "kept"), pairs(MASKS, TOLERANCE, ["whole rows too", "some of each row"])
)
def test_masks_that_are_added(number, kept, precision):
    """A row that is masked as a whole is a row of numbers, unless what is added is infinite."""
    x, mask = drawn(2, 5, 40), np.where(drawn(2, 5, 40, seed=2) > 0, MASKS[number], 0.0)
    mask[..., 0] = 0.0
    if kept == "whole rows too" and np.isfinite(MASKS[number]):
        mask[0, 2] = MASKS[number]
    added = relax.const(mask.astype("float32"))

    check(
        precision, lambda v: op.nn.softmax(op.add(half(v), added)), lambda v: softmax(masked(v / 2, mask, precision)), x
    )


def attention(q, k, v, mask):
    scores = op.add(half(op.matmul(q, op.permute_dims(k, (0, 2, 1)))), mask)
    return op.matmul(op.nn.softmax(scores), v)


@pytest.mark.each_value
@SHORT
@pytest.mark.parametrize("number", MASKS)
def test_masked_attention(number, precision):
    q, k, v = (drawn(2, 24, 16, seed=seed) for seed in range(3))
    mask = np.triu(np.full((24, 24), MASKS[number]), 1)
    if np.isfinite(MASKS[number]):
        mask[3] = MASKS[number]
    added = relax.const(mask.astype("float32"))

    def expected(q, k, v):
        return softmax(masked(q @ k.swapaxes(1, 2) / 2, mask, precision)) @ v

    check(precision, lambda q, k, v: attention(q, k, v, added), expected, q, k, v)


@SHORT
def test_a_softmax_of_long_rows(precision):
    """Each of 4,096 terms is 2.4e-4 of their sum: added up as halves, or as bfloat16, most would be lost."""
    check(
        precision,
        lambda v: op.multiply(op.nn.softmax(half(v)), relax.const(4096.0)),
        lambda v: softmax(v / 2) * 4096,
        drawn(3, 4096),
    )


@SHORT
def test_norms_of_numbers_with_a_large_mean(precision):
    """A thousand and up to eight: what is stored between kernels has no digits left for more."""
    x = 1024 + 8 * np.round(4 * drawn(5, 192))
    check(precision, lambda v: layer_norm(op.nn.relu(v), 192), norm, x)


@SHORT
def test_sums_of_ten_thousand_terms(precision):
    x, w = 1 + drawn(9, 10000) / 8, np.abs(drawn(10000, 11, seed=1))
    weight = relax.const(w.astype("float32"))
    check(precision, lambda v: op.matmul(half(v), weight), lambda v: v / 2 @ w, x)
    check(precision, lambda v: op.sum(half(v), axis=[-1]), lambda v: (v / 2).sum(-1), x)


def times_large(precision):
    """Products with numbers beyond half's range, which become small again."""
    large = 1e6 * (1 + np.abs(drawn(64)))
    weight, most, small = relax.const(large.astype("float32")), relax.const(3e4), relax.const(1e-4)

    def build(v):
        return op.tanh(op.multiply(op.minimum(op.multiply(op.nn.relu(v), weight), most), small))

    return check(precision, build, lambda v: np.tanh(np.minimum(np.maximum(v, 0) * large, 3e4) / 1e4), drawn(6, 64))


@SHORT
def test_large_weights_of_small_results(precision):
    times_large(precision)


def reasons(mod):
    return " ".join(entry.get("reason", "") for entry in read_log(mod))


def test_explain_says_what_stays_float32():
    mask = relax.const(np.triu(np.full((24, 24), -1e9, "float32"), 1))
    shapes = 3 * [(2, 24, 16)]
    said = reasons(graph_in("half", lambda q, k, v: attention(q, k, v, mask), *shapes))
    assert "beyond 65504" in said and "sums of products" in said
    assert "or one that it reads, is beyond 65504" in reasons(times_large("half"))
    said = reasons(graph_in("half", lambda x: layer_norm(op.nn.relu(x), 96), (7, 96)))
    assert "sums of a row" in said
    said = reasons(graph_in("bfloat16", lambda q, k, v: attention(q, k, v, mask), *shapes))
    assert "65504" not in said and "all that is no product stay float32" in said
