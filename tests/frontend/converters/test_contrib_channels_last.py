# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from against_onnxruntime import RUNTIME, check_contrib, integers, model_of, reference, weights

F = "float32"
WINDOWS = [
    {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1], "strides": [2, 1], "group": 2},
    {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [1, 2], "group": 2},
]
POOLS = [
    {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 1, 0, 1]},
    {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 1, 0, 1], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"},
]


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def _first(x):
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


@pytest.mark.parametrize("attributes", WINDOWS, ids=str)
def test_convolutions_are_those_with_channels_first(attributes):
    x, given = _floats(2, 7, 6, 4), {"w": _floats(6, 2, 3, 3, seed=1), "b": _floats(6, seed=2)}
    first = {"x": _first(x)}
    node = helper.make_node("FusedConv", ["x", "w", "b"], ["y"], domain=RUNTIME, **attributes)
    wanted = np.moveaxis(reference(model_of([node], first, {"y": F}, given), first)[0], 1, -1)
    check_contrib("NhwcConv", {"x": x}, {"y": F}, given, wanted=[wanted], **attributes)
    residual = _floats(*wanted.shape, seed=3)
    wanted = np.maximum(wanted + residual, 0)
    arrays, names = {"x": x, "z": residual}, "x w b z"
    check_contrib("NhwcFusedConv", arrays, {"y": F}, given, names, wanted=[wanted], activation="Relu", **attributes)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    "attributes", [*POOLS, {"kernel_shape": [2, 2], "strides": [2, 2], "dilations": [2, 1]}], ids=str
)
def test_maxima_of_bytes(dtype, attributes):
    check_contrib(
        "NhwcMaxPool", {"x": integers(np.random.default_rng(0), dtype, (2, 7, 9, 3))}, {"y": dtype}, **attributes
    )


def _normalized(x, gamma, beta, groups, active):
    batch, channels = len(x), x.shape[-1]
    wide = x.reshape(batch, -1, groups, channels // groups).astype("float64")
    wide = (wide - wide.mean((1, 3), keepdims=True)) / np.sqrt(wide.var((1, 3), keepdims=True) + 1e-5)
    result = wide.reshape(x.shape) * gamma + beta
    return (result / (1 + np.exp(-result)) if active else result).astype(F)


@pytest.mark.pairwise
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("active", [0, 1])
@pytest.mark.parametrize("skip", [None, (2, 6), (2, 1, 1, 6), (2, 5, 4, 6)])
def test_group_normalization(last, active, skip):
    """By its written definition: ONNX Runtime has no kernel for it on a CPU."""
    x, gamma, beta, bias = _floats(2, 5, 4, 6), _floats(6, seed=1), _floats(6, seed=2), _floats(6, seed=3)

    def turned(array):
        return array if last else _first(array)

    options = {"groups": 3, "activation": active, "channels_last": last}
    if skip is None:
        wanted = [turned(_normalized(x, gamma, beta, 3, active))]
        check_contrib("GroupNorm", {"x": turned(x)}, {"y": F}, {"g": gamma, "b": beta}, wanted=wanted, **options)
        return
    other = _floats(*skip, seed=4)
    total = x + (other.reshape(2, 1, 1, 6) if other.ndim == 2 else other) + bias
    arrays = {"x": turned(x), "s": turned(other) if skip == x.shape else other}
    wanted = [turned(_normalized(total, gamma, beta, 3, active)), turned(total)]
    given = {"g": gamma, "b": beta, "c": bias}
    check_contrib("SkipGroupNorm", arrays, {"y": F, "t": F}, given, "x g b s c", wanted=wanted, **options)


def _parameters(random, dtype):
    scales = {f"s{name}": np.float32(random.random() * 0.05 + 0.01) for name in "xy"}
    return scales | {f"z{name}": integers(random, dtype) for name in "xy"}


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("last", [0, 1])
def test_quantized_windows_with_channels_last_or_first(dtype, last):
    random = np.random.default_rng(0)
    x = integers(random, dtype, (2, 7, 6, 4) if last else (2, 4, 7, 6))
    for attributes in WINDOWS:
        given = _parameters(random, dtype) | {"sw": (random.random(6) * 0.1).astype(F), "zw": np.zeros(6, "int8")}
        given |= {"w": weights(random, "int8", (6, 2, 3, 3)), "b": random.integers(-900, 900, 6).astype("int32")}
        names = "x sx zx w sw zw sy zy b"
        check_contrib("QLinearConv", {"x": x}, {"y": dtype}, given, names, channels_last=last, **attributes)
    for attributes in POOLS:
        given, names = _parameters(random, dtype), "x sx zx sy zy"
        check_contrib("QLinearAveragePool", {"x": x}, {"y": dtype}, given, names, channels_last=last, **attributes)
    check_contrib("QLinearGlobalAveragePool", {"x": x}, {"y": dtype}, given, names, channels_last=last)
