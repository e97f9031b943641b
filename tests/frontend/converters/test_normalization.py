# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-3, 3, (2, 3, 4)).astype("float32")


@pytest.mark.parametrize("axis", [-3])
def test_the_root_mean_square_of_a_whole_tensor(agree, axis):
    node = helper.make_node("RMSNormalization", ["x", "s"], ["y"], axis=axis)
    agree(node, {"x": X, "s": RANDOM.uniform(size=X.shape).astype("float32")}, opset=23, by_reference=True)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_batch_normalization_in_training_mode(agree, dtype):
    node = helper.make_node("BatchNormalization", list("xsbmv"), ["y", "mean", "var"], training_mode=1, momentum=0.7)
    statistics = {name: RANDOM.uniform(0.5, 2, 3).astype(dtype) for name in "sbmv"}
    tolerance = 5e-3 if dtype == "float16" else 1e-5
    agree(node, {"x": X.astype(dtype), **statistics}, tolerance=tolerance, by_reference=True)


def test_dropout_keeps_all_at_inference(agree):
    agree(helper.make_node("Dropout", ["x"], ["y", "mask"]), {"x": X}, tolerance=0)
    training = {"r": np.float32(0), "t": np.bool_(True)}
    agree(
        helper.make_node("Dropout", ["x", "r", "t"], ["y", "mask"]), {"x": X}, training, tolerance=0, by_reference=True
    )


def test_dropout_that_draws_is_refused(agree):
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y"], name="drop")
    with pytest.raises(UserError, match=r"drop.*random"):
        agree(node, {"x": X}, {"r": np.float32(0.5), "t": np.bool_(True)}, by_reference=True)
    with pytest.raises(UserError, match=r"drop.*random"):
        agree(node, {"x": X, "t": np.array(False)}, {"r": np.float32(0.5)}, by_reference=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_normalized_is_read(build, assert_same, dtype):
    nodes = [
        helper.make_node("LayerNormalization", ["x", "s"], ["n"]),
        helper.make_node("BatchNormalization", list("nbbbb"), ["t"], training_mode=1),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    constants = {"s": np.arange(4, dtype=dtype), "b": np.ones(3, dtype)}
    model = build(nodes[::2], {"x": (X.shape, dtype)}, {"y": (X.shape, dtype)}, constants)
    model.graph.node[1].input[0] = "n"
    assert_same(model, from_onnx(model), tolerance=1e-5)
    model = build(nodes, {"x": (X.shape, dtype)}, {"y": (X.shape, dtype)}, constants)
    assert from_onnx(model)["main"].ret_ty.dtype == dtype
