# SPDX-License-Identifier: Apache-2.0
from math import erf, sqrt

import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check_contrib, model_of

SHAPE = (2, 5, 6)
F = "float32"


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


X, OTHER, BIAS = _floats(*SHAPE), _floats(*SHAPE, seed=1), _floats(SHAPE[-1], seed=2)


def test_sums_with_a_bias_and_a_residual():
    arrays = {"x": X, "b": BIAS, "s": OTHER}
    check_contrib("BiasAdd", arrays, {"y": F}, wanted=[X + BIAS + OTHER])
    results = {"y": F, "mask": "bool"}
    check_contrib("BiasDropout", arrays, results, wanted=[X + BIAS + OTHER, np.ones(SHAPE, bool)])
    check_contrib("BiasDropout", {"x": X, "b": BIAS}, {"y": F}, wanted=[X + BIAS])
    check_contrib("BitmaskBiasDropout", arrays, {"y": F}, wanted=[X + BIAS + OTHER])
    check_contrib("BitmaskDropout", {"x": X}, {"y": F}, wanted=[X])


def test_the_left_half_times_gelu_of_the_right_one():
    left, right = np.split(X + BIAS, 2, -1)
    gelu = right * 0.5 * (1 + np.vectorize(erf)(right / sqrt(2)))
    check_contrib("BiasSplitGelu", {"x": X}, {"y": F}, {"b": BIAS}, wanted=[(left * gelu).astype(F)])


@pytest.mark.each_value
@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("bias", [(2, 1, 1, 5), (1, 1, 4, 5), (4, 5), (1, 3, 1, 5)])
def test_softmax_of_a_sum_over_all_axes_behind_one(axis, bias):
    x, bias = _floats(2, 3, 4, 5), _floats(*bias, seed=1)
    grown = np.exp(x + bias)
    wanted = grown / grown.sum(tuple(range(axis, 4)), keepdims=True)
    check_contrib("BiasSoftmax", {"x": x, "b": bias}, {"y": F}, wanted=[wanted], axis=axis, is_inner_broadcast=1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_silu_of_a_scaled_tensor(dtype):
    check_contrib("ScaledSiLU", {"x": X.astype(dtype)}, {"y": dtype}, alpha=1.3)
    check_contrib("ScaledSiLU", {"x": X.astype(dtype), "s": np.array(0.7, dtype)}, {"y": dtype}, alpha=1.3)


def test_a_gate_for_each_row():
    check_contrib("GatedAdd", {"x": X, "y0": OTHER, "g": _floats(2, 5, 1)}, {"y": F})


@pytest.mark.pairwise
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("limit", [0.0, 0.8])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (1.702, 1.0)])
def test_swiglu(packed, limit, alpha, beta):
    gate, up = np.split(X, 2, -1) if packed else (X, OTHER)
    arrays = {"x": X} if packed else {"x": X, "u": OTHER}
    if limit:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    wanted = (gate * _sigmoid(alpha * gate) * (up + beta)).astype(F)
    options = {"limit": limit, "activation_alpha": alpha, "activation_beta": beta}
    check_contrib("SwiGLU", arrays, {"y": F}, wanted=[wanted], **options)


@pytest.mark.each_value
@pytest.mark.parametrize("wrong", [0.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("attribute", "right"),
    [("", np.isfinite), ("isnan_only", lambda x: ~np.isnan(x)), ("isinf_only", lambda x: ~np.isinf(x))],
)
def test_whether_all_numbers_are_finite(wrong, attribute, right):
    other = OTHER.copy()
    other[1, 2, 3] = wrong
    wanted = np.array(right(other).all())
    check_contrib(
        "IsAllFinite", {"x": X, "o": other}, {"y": "bool"}, wanted=[wanted], **({attribute: 1} if attribute else {})
    )


@pytest.mark.parametrize("op", ["ComplexMul", "ComplexMulConj"])
def test_products_of_complex_numbers(op):
    a, b = _floats(3, 4, 2), _floats(1, 4, 2, seed=1)
    x, y = (each[..., 0] + 1j * each[..., 1] for each in (a, b))
    product = x * (y.conj() if op == "ComplexMulConj" else y)
    check_contrib(op, {"a": a, "b": b}, {"y": F}, wanted=[np.stack([product.real, product.imag], -1)])


def test_what_is_given_back():
    check_contrib("SampleOp", {"x": X}, {"y": F})


@pytest.mark.parametrize(
    ("op", "names", "attributes", "reason"),
    [
        ("BiasDropout", ["x", "x", "", "", "t"], {}, "random numbers"),
        ("IsAllFinite", ["x"], {"isnan_only": 1, "isinf_only": 1}, "exclude each other"),
        ("GatedAdd", ["x", "x", "x", "w"], {}, "gate_weight"),
    ],
)
def test_what_is_refused(op, names, attributes, reason):
    node = helper.make_node(op, names, ["y"], "gates", domain=RUNTIME, **attributes)
    constants = {"t": np.array(True), "w": np.ones((6, 1), "float32")}
    model = model_of([node], {"x": X}, {"y": ("bool" if op == "IsAllFinite" else F, SHAPE)}, constants)
    with pytest.raises(sm.UserError, match=rf"{op} .*gates.*{reason}"):
        sm.from_onnx(model)
