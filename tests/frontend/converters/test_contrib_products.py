# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check_contrib, model_of

F = "float32"


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("bias", [False, True])
def test_the_fast_gelu_of_a_product(bias):
    x, w, b = _floats(2, 5, 6), _floats(6, 7, seed=1), _floats(7, seed=2)
    z = x @ w + (b if bias else 0)
    wanted = z * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    check_contrib("GemmFastGelu", {"x": x}, {"y": F}, {"w": w, **({"b": b} if bias else {})}, wanted=[wanted.astype(F)])


ACTIVATIONS = {
    "LeakyRelu": ({"activation_alpha": 0.2}, lambda x: np.where(x < 0, 0.2 * x, x)),
    "Relu": ({}, lambda x: np.maximum(x, 0)),
    "Tanh": ({}, np.tanh),
    "HardSigmoid": ({"activation_alpha": 0.3, "activation_beta": 0.4}, lambda x: np.clip(0.3 * x + 0.4, 0, 1)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_a_product(name):
    attributes, function = ACTIVATIONS[name]
    a, b = _floats(2, 6, 5), _floats(6, 7, seed=1)
    wanted = function(0.5 * (a.transpose(0, 2, 1) @ b)).astype(F)
    check_contrib(
        "FusedMatMulActivation",
        {"a": a, "b": b},
        {"y": F},
        wanted=[wanted],
        activation=name,
        alpha=0.5,
        transA=1,
        **attributes,
    )


def test_the_old_name_of_a_product_of_transposed_sides():
    check_contrib(
        "TransposeMatMul", {"a": _floats(2, 4, 3), "b": _floats(2, 5, 4)}, {"y": F}, transA=1, transB=1, alpha=0.4
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(metric, dtype):
    arrays = {"a": _floats(5, 7).astype(dtype), "b": _floats(4, 7, seed=1).astype(dtype)}
    check_contrib("CDist", arrays, {"y": dtype}, tolerance=5e-6, metric=metric)


@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 5, 5), (1, 1), (7, 2, 2), (17, 17)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-5), ("float64", 1e-12)])
def test_inverses(shape, dtype, tolerance):
    check_contrib("Inverse", {"x": _floats(*shape).astype(dtype)}, {"y": dtype}, tolerance=tolerance)


def test_the_inverse_of_a_matrix_with_zeros_on_its_diagonal():
    check_contrib("Inverse", {"x": np.eye(5, dtype=F)[None, [2, 0, 1, 4, 3]]}, {"y": F})


@pytest.mark.each_value
@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("size", [2, 10, 16])
def test_fourier_transforms(size, opset):
    x = _floats(2, 3, size)
    spectrum = np.fft.rfft(x)
    spectrum = np.stack([spectrum.real, spectrum.imag], -1).astype(F)
    options = {"signal_ndim": 1, "normalized": 0, "onesided": 1, "opset": opset}
    check_contrib("Rfft", {"x": x}, {"y": F}, wanted=[spectrum], **options)
    check_contrib("Irfft", {"x": spectrum}, {"y": F}, wanted=[x], **options)


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "reason"),
    [
        ("CDist", (3, 4), {"metric": "cosine"}, "metric is 'cosine'"),
        ("Inverse", (3, 4), {}, "only square ones"),
        ("Rfft", (3, 4), {"signal_ndim": 2}, "signal_ndim is 2"),
    ],
)
def test_what_is_refused(op, shape, attributes, reason):
    names = ["x", "x"] if op == "CDist" else ["x"]
    node = helper.make_node(op, names, ["y"], "odd", domain=RUNTIME, **attributes)
    with pytest.raises(sm.UserError, match=rf"{op} .*odd.*{reason}"):
        sm.from_onnx(model_of([node], {"x": _floats(*shape)}, {"y": (F, shape)}))
