# SPDX-License-Identifier: Apache-2.0
"""ResNet-18 with an open batch, as ONNX, from random weights; normalizations are in the convolutions."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = (64, 128, 256, 512)
CLASSES = 1000


class _Graph:
    """A graph in the making: its nodes and weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def add(self, kind: str, inputs: list[str], **attributes) -> str:
        """Add a node, and return its result."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(self, shape: tuple[int, ...], deviation: float) -> str:
        """Add a weight, and return its name."""
        name, values = f"weight_{len(self.weights)}", self._random.normal(0, deviation, shape).astype("float32")
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, x: str, before: int, after: int, size: int, stride: int) -> str:
        """Add a convolution that keeps the scale of its input."""
        weight = self.weight((after, before, size, size), (2 / (before * size * size)) ** 0.5)
        inputs = [x, weight, self.weight((after,), 0.01)]
        return self.add("Conv", inputs, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[size // 2] * 4)

    def block(self, x: str, before: int, after: int, stride: int) -> str:
        """Add two convolutions, and what goes around them."""
        inner = self.add("Relu", [self.conv(x, before, after, 3, stride)])
        around = x if before == after else self.conv(x, before, after, 1, stride)
        return self.add("Relu", [self.add("Add", [self.conv(inner, after, after, 3, 1), around])])


def resnet18() -> onnx.ModelProto:
    """Return the network; its input is ``x`` (batch, 3, 224, 224)."""
    graph = _Graph()
    x = graph.add("Relu", [graph.conv("x", 3, CHANNELS[0], 7, 2)])
    x, before = graph.add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), CHANNELS[0]
    for after in CHANNELS:
        x = graph.block(x, before, after, 1 if before == after else 2)
        x, before = graph.block(x, after, after, 1), after
    x = graph.add("Flatten", [graph.add("GlobalAveragePool", [x])])
    last = [x, graph.weight((CLASSES, before), 0.04), graph.weight((CLASSES,), 0.01)]
    result = graph.add("Gemm", last, transB=1)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 224, 224])
    found = helper.make_tensor_value_info(result, TensorProto.FLOAT, ["batch", CLASSES])
    whole = helper.make_graph(graph.nodes, "resnet18", [given], [found], graph.weights)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
