# SPDX-License-Identifier: Apache-2.0
"""Small networks quantized by ONNX Runtime's own tools."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

_FLOAT = TensorProto.FLOAT


def _model(nodes: list, shape: list[int], result: list[int], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "quantized",
        [helper.make_tensor_value_info("x", _FLOAT, shape)],
        [helper.make_tensor_value_info("y", _FLOAT, result)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutions(size: int = 16, width: int = 16) -> onnx.ModelProto:
    """Two convolutions with a shortcut, a depthwise one, two pools and a classifier."""
    random = np.random.default_rng(0)
    shapes = {"w1": (width, 3, 3, 3), "w2": (width, width, 3, 3), "w3": (width, 1, 3, 3), "w4": (10, width)}
    weights = {name: random.standard_normal(shape).astype("float32") * 0.3 for name, shape in shapes.items()}
    biases = {f"b{at}": random.standard_normal(len(weights[f"w{at}"])).astype("float32") for at in (1, 2, 3, 4)}
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], **conv),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], **conv),
        helper.make_node("Add", ["c2", "r1"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["small"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["small", "w3", "b3"], ["c3"], group=width, **conv),
        helper.make_node("GlobalAveragePool", ["c3"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w4", "b4"], ["y"], transB=1),
    ]
    return _model(nodes, [1, 3, size, size], [1, 10], {**weights, **biases})


def transformer(rows: int = 8, heads: int = 2, width: int = 32) -> onnx.ModelProto:
    """A block of attention and two layers."""
    random = np.random.default_rng(0)
    shapes = {"wq": (width, width), "wk": (width, width), "wv": (width, width), "w1": (width, 64), "w2": (64, width)}
    weights = {name: random.standard_normal(shape).astype("float32") * 0.2 for name, shape in shapes.items()}
    weights["split"] = np.array([1, rows, heads, width // heads])
    weights["joined"] = np.array([1, rows, width])
    nodes = []
    for part, axes in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{part}"], [f"{part}1"]),
            helper.make_node("Reshape", [f"{part}1", "split"], [f"{part}2"]),
            helper.make_node("Transpose", [f"{part}2"], [part], perm=axes),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o1"]),
        helper.make_node("Transpose", ["o1"], ["o2"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["o2", "joined"], ["o"]),
        helper.make_node("Add", ["o", "x"], ["h"]),
        helper.make_node("MatMul", ["h", "w1"], ["h1"]),
        helper.make_node("Relu", ["h1"], ["h2"]),
        helper.make_node("MatMul", ["h2", "w2"], ["h3"]),
        helper.make_node("Add", ["h3", "h"], ["y"]),
    ]
    return _model(nodes, [1, rows, width], [1, rows, width], weights)


class _Random(quantization.CalibrationDataReader):
    def __init__(self, model: onnx.ModelProto, count: int = 4):
        shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
        random = np.random.default_rng(1)
        self._arrays = iter([{"x": random.standard_normal(shape).astype("float32")} for _ in range(count)])

    def get_next(self):
        return next(self._arrays, None)


def quantized(model: onnx.ModelProto, folder, form: str, **options) -> onnx.ModelProto:
    """The model with static (form ``QDQ`` or ``QOperator``) or with dynamic quantization."""
    given, made = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(model, given)
    if form == "dynamic":
        quantization.quantize_dynamic(given, made, **options)
    else:
        form = quantization.QuantFormat[form]
        quantization.quantize_static(given, made, _Random(model), quant_format=form, **options)
    return onnx.load(made)
