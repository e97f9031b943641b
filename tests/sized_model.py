# SPDX-License-Identifier: Apache-2.0
"""An ONNX model with open sizes, whose graph computes shapes, and ONNX Runtime's results for it."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

WIDE = 160
"""Columns of its matrix, which is stored outside of the code."""


def sized_model() -> onnx.ModelProto:
    """Images ``x`` (n, 3, h, w) and rows ``row`` (n, k, 160), and ``fixed`` (4, 160), whose kernel no size changes."""
    random = np.random.default_rng(3)
    constants = {
        "kernel": random.standard_normal((8, 3, 3, 3)).astype("float32"),
        "matrix": random.standard_normal((WIDE, WIDE)).astype("float32"),
        "first": np.array([0], "int64"),
        "rest": np.array([8, -1], "int64"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["r", "wanted"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["image"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["row", "matrix"], ["m"]),
        helper.make_node("Softmax", ["m"], ["text"], axis=-1),
        helper.make_node("MatMul", ["fixed", "matrix"], ["same"]),
    ]
    sizes = {"x": ["n", 3, "h", "w"], "row": ["n", "k", WIDE], "fixed": [4, WIDE]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("image", "text", "same")]
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "sized", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def shapes(n: int, h: int, w: int, k: int) -> dict[str, tuple[int, ...]]:
    """The shapes of its inputs of one size."""
    return {"x": (n, 3, h, w), "row": (n, k, WIDE), "fixed": (4, WIDE)}


def inputs(size: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of these shapes."""
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype("float32") for name, shape in size.items()}


def expected(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes."""
    session = onnxruntime.InferenceSession(sized_model().SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(arrays))
