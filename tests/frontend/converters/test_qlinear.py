# SPDX-License-Identifier: Apache-2.0
import logging

import numpy as np
import pytest
from onnx import helper
from onnxruntime.quantization import QuantType

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check, integers, model_of, reference
from quantized_networks import convolutions, quantized, transformer

SHAPE = (2, 5, 9, 11)
POOL = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 1, 0, 1]}
UNARY = [
    ("QLinearSigmoid", {}),
    ("QLinearLeakyRelu", {"alpha": 0.2}),
    ("QLinearGlobalAveragePool", {}),
    ("QLinearAveragePool", POOL),
    ("QLinearAveragePool", {**POOL, "count_include_pad": 1, "ceil_mode": 1}),
    ("QLinearSoftmax", {"axis": -1, "opset": 13}),
]


def _parameters(random, dtype, *names):
    scales = {f"s{name}": np.float32(random.random() * 0.1 + 0.01) for name in names}
    return scales | {f"z{name}": integers(random, dtype) for name in names}


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("op", "attributes"), UNARY, ids=str)
def test_operators_of_one_tensor(dtype, op, attributes):
    random = np.random.default_rng(0)
    given = _parameters(random, dtype, "a", "y")
    given["sy"] = np.float32(1 / 256) if op in ("QLinearSigmoid", "QLinearSoftmax") else given["sy"]
    if op == "QLinearSoftmax":
        given["zy"] = np.array(np.iinfo(dtype).min, dtype)
    node = helper.make_node(op, ["a", "sa", "za", "sy", "zy"], ["y"], domain=RUNTIME, **attributes)
    check([node], {"a": integers(random, dtype, SHAPE)}, {"y": dtype}, given)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_operators_of_two_tensors(dtype):
    random = np.random.default_rng(0)
    given = _parameters(random, dtype, "a", "b", "y")
    arrays = {"a": integers(random, dtype, SHAPE), "b": integers(random, dtype, SHAPE)}
    names = ["a", "sa", "za", "b", "sb", "zb"]
    for op in ("QLinearAdd", "QLinearMul"):
        check([helper.make_node(op, [*names, "sy", "zy"], ["y"], domain=RUNTIME)], arrays, {"y": dtype}, given)
    node = helper.make_node("QLinearConcat", ["sy", "zy", *names], ["y"], domain=RUNTIME, axis=1)
    check([node], arrays, {"y": dtype}, given)
    node = helper.make_node("QLinearWhere", ["c", *names, "sy", "zy"], ["y"], domain=RUNTIME)
    check([node], {"c": random.random(SHAPE) < 0.5, **arrays}, {"y": dtype}, given)


def test_what_has_no_converter_is_refused_by_name():
    node = helper.make_node("BeamSearch", ["x", "x", "x", "x"], ["y"], domain=RUNTIME, name="quantized")
    with pytest.raises(sm.UserError, match=r"com\.microsoft\.BeamSearch \(quantized\)"):
        sm.from_onnx(model_of([node], {"x": np.zeros((2, 2), "float32")}, {"y": ("float32", (2, 2))}))


SIGNED = {"per_channel": True, "activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
NETWORKS = [
    (convolutions, "QDQ", {}),
    pytest.param(convolutions, "QDQ", SIGNED, marks=pytest.mark.device),
    pytest.param(convolutions, "QOperator", {}, marks=pytest.mark.device),
    pytest.param(convolutions, "QOperator", SIGNED, marks=pytest.mark.device),
    pytest.param(convolutions, "dynamic", {}, marks=pytest.mark.device),
    pytest.param(transformer, "QDQ", {}, marks=pytest.mark.device),
    pytest.param(transformer, "QOperator", {}, marks=pytest.mark.device),
    (transformer, "dynamic", {"reduce_range": True}),  # what processors without VNNI need
]
STEP = 0.02  # the largest step of a quantized number, of the largest result


def _compare(network, form, options, folder, target=None):
    logging.disable(logging.WARNING)
    try:
        model = quantized(network(), folder, form, **options)
    finally:
        logging.disable(logging.NOTSET)
    compiled = sm.compile(sm.from_onnx(model), *([target] if target else []))
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    off, count = 0, 0
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal(shape).astype("float32")
        (got,), (want,) = compiled.run(x), reference(model, {"x": x})
        error = np.abs(got - want) / np.abs(want).max()
        assert error.max() < STEP
        off, count = off + np.sum(error > 2e-6), count + error.size
    assert off <= 0.001 * count  # a sum of floats in another order, on the edge between two numbers


@pytest.mark.parametrize(("network", "form", "options"), NETWORKS)
def test_quantized_networks(network, form, options, tmp_path):
    _compare(network, form, options, tmp_path)


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
@pytest.mark.parametrize("network", [convolutions, transformer])
@pytest.mark.parametrize("target", ["opencl", "opencl-texture"])
def test_quantized_networks_through_opencl(network, form, target, tmp_path):
    _compare(network, form, {}, tmp_path, target)
