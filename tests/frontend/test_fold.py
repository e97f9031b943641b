# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from against_onnxruntime import check, integers
from smartmem_tvm import light
from smartmem_tvm.frontend import fold, from_onnx, load_onnx, onnx_file, read_model
from smartmem_tvm.frontend import helper as process

FLOATS = "float32"


@pytest.fixture
def flatten_by_shape(build):
    """Return what the TorchScript exporter makes of ``x.reshape(x.shape[0], -1)``, with an open batch."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["batches"]),
        helper.make_node("Concat", ["batches", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "axis": np.array([0]), "rest": np.array([-1])}
    tensors = {"x": (("n", 3, 4), FLOATS)}, {"y": (("n", None), FLOATS)}
    return build(nodes, *tensors, constants)


@pytest.fixture
def no_onnxruntime(monkeypatch):
    """Make every use of ONNX Runtime fail, in forks of this process, which the helper knows nothing of."""

    def refuse(*args, **kwargs):
        raise RuntimeError("no kernel for this operator")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    monkeypatch.setattr(process, "serving", True)


def test_shape_arithmetic_is_folded(flatten_by_shape, operators, assert_same):
    shapes = {"x": (2, 3, 4)}
    assert [node.op_type for node in load_onnx(flatten_by_shape, shapes).graph.node] == ["Reshape"]
    mod = from_onnx(flatten_by_shape, shapes)
    assert operators(mod) == ["reshape"]
    assert_same(flatten_by_shape, mod, tolerance=0)


def test_constants_are_folded(build, assert_same):
    nodes = [helper.make_node("Exp", ["c"], ["e"]), helper.make_node("Add", ["x", "e"], ["y"])]
    tensor = ((2, 3), FLOATS)
    model = build(nodes, {"x": tensor}, {"y": tensor}, {"c": np.float32(0.5)})
    assert [node.op_type for node in fold.known_nodes(model)] == ["Exp"]
    assert [node.op_type for node in load_onnx(model).graph.node] == ["Add"]
    assert_same(model, from_onnx(model))


def test_a_condition_that_is_known_chooses_its_branch(build, assert_same):
    def branch(op_type):
        value = helper.make_tensor_value_info("r", 1, (2, 3))
        return helper.make_graph([helper.make_node(op_type, ["x"], ["r"])], op_type, [], [value])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs"))
    tensor = ((2, 3), FLOATS)
    model = build([node], {"x": tensor}, {"y": tensor}, {"c": np.bool_(True)})
    assert [each.op_type for each in load_onnx(model).graph.node] == ["Neg"]
    assert_same(model, from_onnx(model))


def test_a_model_without_shape_arithmetic_is_left_alone(relu_model, no_onnxruntime):
    assert fold.known_nodes(relu_model) == []
    assert fold.fold_shape_arithmetic(relu_model) is relu_model


def test_a_model_that_onnx_runtime_refuses_is_folded_node_by_node(flatten_by_shape, no_onnxruntime, caplog):
    caplog.set_level("INFO")
    read = read_model(flatten_by_shape, {"x": (2, 3, 4)}).proto
    assert [node.op_type for node in fold.fold_shape_arithmetic(read).graph.node] == ["Reshape"]
    assert "no kernel for this operator" in caplog.text


def _reshaped_sum(build, *nodes, operand, constants):
    """Return a model of x + `operand`, followed by a reshape to a shape that the graph computes."""
    reshape = [
        helper.make_node("Add", ["x", operand], ["t"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["t", "shape"], ["y"]),
    ]
    tensor = ((200, 200), FLOATS)
    return build([*nodes, *reshape], {"x": tensor}, {"y": tensor}, constants)


WEIGHT = np.random.default_rng(0).standard_normal((200, 200)).astype(FLOATS)


def test_large_weights_stay_out_of_the_way_and_come_back(build, assert_same):
    model = _reshaped_sum(build, operand="w", constants={"w": WEIGHT})
    read = onnx_file.read(model)
    assert fold.lift_weights(read.proto, read.weights) == ["w"]
    assert read.proto.ByteSize() < 1000 < model.ByteSize()
    folded = load_onnx(model)
    assert "Shape" not in [node.op_type for node in folded.graph.node]
    assert [value.name for value in folded.graph.input] == ["x"]
    assert_same(model, from_onnx(model))


def test_large_weights_that_folding_needs_are_folded(build, assert_same):
    double = helper.make_node("Transpose", ["w"], ["wt"])
    model = _reshaped_sum(build, double, operand="wt", constants={"w": WEIGHT})
    folded = load_onnx(model)
    assert "Transpose" not in [node.op_type for node in folded.graph.node]
    assert [tensor.dims for tensor in folded.graph.initializer if len(tensor.dims) == 2] == [[200, 200]]
    assert_same(model, from_onnx(model))


def test_batch_normalization_is_merged_into_the_convolution(build, assert_same):
    channels = ["scale", "bias", "mean", "variance"]
    random = np.random.default_rng(0)
    constants = {name: random.uniform(0.5, 2, 64).astype(FLOATS) for name in channels}
    constants["w"] = random.standard_normal((64, 64, 3, 3)).astype(FLOATS)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", *channels], ["n"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["n", "shape"], ["y"]),
    ]
    tensor = ((1, 64, 8, 8), FLOATS)
    model = build(nodes, {"x": tensor}, {"y": tensor}, constants)
    assert "BatchNormalization" not in [node.op_type for node in load_onnx(model).graph.node]
    assert_same(model, from_onnx(model), tolerance=1e-4)


LEGACY = sorted((Path(__file__).parents[2] / "models" / "legacy").glob("*.onnx"))


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm"])
@pytest.mark.parametrize("right", ["weights", "dequantized"])
def test_weights_and_biases_between_quantizations_keep_their_values(kind, right):
    """They are no multiples of a scale: rounding the bias to integers, or the weights to bytes, would change them."""
    random = np.random.default_rng(0)
    x_shape, w_shape = ((4, 8), (8, 8)) if kind == "Gemm" else ((1, 8, 6), (8, 8, 3))
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale"], ["xf"]),
        helper.make_node("DequantizeLinear", ["bytes", "scale"], ["dequantized"]),
        helper.make_node(kind, ["xf", right, "bias"], ["y"]),
        helper.make_node("QuantizeLinear", ["y", "scale"], ["q"]),
    ]
    constants = {"bytes": integers(random, "int8", w_shape), "scale": np.float32(4)}
    constants["weights"] = random.standard_normal(w_shape).astype("float32")
    constants["bias"] = np.arange(8, dtype="float32") + 0.25
    constants = {name: array for name, array in constants.items() if name != "weights" or right == "weights"}
    outputs = {"y": "float32", "q": "uint8", "dequantized": "float32"}
    check(nodes, {"x": integers(random, "uint8", x_shape)}, outputs, constants, tolerance=1e-6)


@pytest.mark.parametrize(("scale", "zero"), [(0.7, 100), (0.3, 100), (0.3, 128)])
def test_two_quantizations_in_a_row_stay_two(scale, zero):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "first", "middle"], ["a"]),
        helper.make_node("DequantizeLinear", ["a", "first", "middle"], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "second", "zero"], ["c"]),
        helper.make_node("DequantizeLinear", ["c", "second", "zero"], ["d"]),
        helper.make_node("Neg", ["second"], ["known"]),
        helper.make_node("Add", ["d", "known"], ["y"]),
    ]
    constants = {"first": np.float32(0.3), "second": np.float32(scale)}
    constants |= {"middle": np.uint8(128), "zero": np.uint8(zero)}
    x = (np.random.default_rng(0).standard_normal((4, 64)) * 50).astype("float32")
    check(nodes, {"x": x}, {"y": "float32"}, constants, tolerance=1e-6)


def test_the_repository_carries_a_legacy_export():
    assert LEGACY


@pytest.mark.slow
@pytest.mark.parametrize("path", LEGACY, ids=lambda path: path.stem)
def test_a_legacy_export_computes_the_same_after_folding(path, run_onnx, random_inputs):
    original, folded = light.fill(onnx.load_model(path)), load_onnx(path)
    assert fold.known_nodes(original) and not fold.known_nodes(folded)
    inputs = random_inputs(from_onnx(path))
    for expected, got in zip(run_onnx(original, inputs), run_onnx(folded, inputs), strict=True):
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
