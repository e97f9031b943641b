# SPDX-License-Identifier: Apache-2.0
"""Five small ONNX networks that together have every family of kernels, for tests that switch options off."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Network:
    """An ONNX graph with one input, made operator by operator; every method returns the name of a tensor."""

    def __init__(self, *shape: int):
        self.nodes, self.constants = [], []
        self.shape, self.random = shape, np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes):
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value, dtype: str = "float32") -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int, terms: int | None = None) -> str:
        """Add a weight that keeps a sum of `terms` terms about as large as one of them."""
        return self.constant(self.random.standard_normal(shape) / np.sqrt(terms or 1))

    def conv(self, x: str, given: int, made: int, size: int = 3, groups: int = 1, kind="Conv", **attributes) -> str:
        each = given // groups
        shape = (made, each, size, size) if kind == "Conv" else (given, made // groups, size, size)
        weight = self.weight(*shape, terms=each * size * size)
        pads = attributes.pop("pads", [size // 2] * 4)
        return self.op(kind, x, weight, self.weight(made), group=groups, pads=pads, **attributes)

    def dense(self, x: str, given: int, made: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(given, made, terms=given)), self.weight(made))

    def norm(self, x: str, size: int) -> str:
        return self.op("LayerNormalization", x, self.weight(size), self.weight(size), axis=-1)

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.constant(shape, "int64"))

    def transpose(self, x: str, *perm: int) -> str:
        return self.op("Transpose", x, perm=perm)

    def gelu(self, x: str) -> str:
        half = self.op("Mul", x, self.constant(0.5))
        erf = self.op("Erf", self.op("Mul", x, self.constant(np.sqrt(0.5))))
        return self.op("Mul", half, self.op("Add", erf, self.constant(1.0)))

    def model(self, out: str, rank: int = 4) -> onnx.ModelProto:
        ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        results = [helper.make_tensor_value_info(out, TensorProto.FLOAT, [None] * rank)]
        graph = helper.make_graph(self.nodes, "small", ends, results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def shuffles() -> onnx.ModelProto:
    """Grouped convolutions with channel shuffles, of 2, 3 and 4 groups, and a mask."""
    net = Network(1, 12, 9, 7)
    x = "x"
    for groups in (2, 3, 4):
        x = net.op("Relu", net.conv(x, 12, 12, 1, groups))
        x = net.transpose(net.reshape(x, 1, groups, 12 // groups, 9, 7), 0, 2, 1, 3, 4)
        x = net.conv(net.reshape(x, 1, 12, 9, 7), 12, 12, 3, 12)
    mask = net.op("Cast", net.op("Greater", x, net.constant(0.0)), to=TensorProto.FLOAT)
    return net.model(net.conv(net.op("Mul", x, mask), 12, 5))


def windows() -> onnx.ModelProto:
    """Attention in shifted windows, with a boolean mask."""
    net, heads = Network(1, 6, 6, 16), 2
    x = net.norm("x", 16)
    rolled = net.op("Concat", *(net.op("Slice", x, *cut) for cut in _cuts(net)), axis=1)
    rows = net.transpose(net.reshape(rolled, 1, 2, 3, 2, 3, 16), 0, 1, 3, 2, 4, 5)
    rows = net.dense(net.reshape(rows, 4, 9, 16), 16, 48)
    parts = net.transpose(net.reshape(rows, 4, 9, 3, heads, 8), 2, 0, 3, 1, 4)
    q, k, v = (net.op("Gather", parts, net.constant(i, "int64"), axis=0) for i in range(3))
    scores = net.op("MatMul", net.op("Mul", q, net.constant(8**-0.5)), net.transpose(k, 0, 1, 3, 2))
    seen = net.constant(np.tri(9) > 0, "bool")
    scores = net.op("Softmax", net.op("Where", seen, scores, net.constant(-1e4)), axis=-1)
    out = net.reshape(net.transpose(net.op("MatMul", scores, v), 0, 2, 1, 3), 4, 9, 16)
    out = net.transpose(net.reshape(net.dense(out, 16, 16), 1, 2, 2, 3, 3, 16), 0, 1, 3, 2, 4, 5)
    return net.model(net.op("Add", net.reshape(out, 1, 6, 6, 16), "x"))


def _cuts(net: Network):
    one, end, axis = net.constant([1], "int64"), net.constant([100], "int64"), net.constant([1], "int64")
    return (one, end, axis), (net.constant([0], "int64"), one, axis)


def hierarchy() -> onnx.ModelProto:
    """Two stages of layer norms and perceptrons, with patches merged in between, and a mean at the end."""
    net, width, side = Network(1, 3, 16, 16), 12, 8
    x = net.conv("x", 3, width, 2, strides=[2, 2], pads=[0] * 4)
    x = net.transpose(net.reshape(x, 1, width, side * side), 0, 2, 1)
    for stage in range(2):
        y = net.dense(net.gelu(net.dense(net.norm(x, width), width, 2 * width)), 2 * width, width)
        x = net.op("Add", x, y)
        if stage == 0:
            patches = net.transpose(net.reshape(x, 1, side // 2, 2, side // 2, 2, width), 0, 1, 3, 4, 2, 5)
            x = net.dense(net.norm(net.reshape(patches, 1, side * side // 4, 4 * width), 4 * width), 4 * width, width)
    return net.model(net.dense(net.op("ReduceMean", x, net.constant([1], "int64"), keepdims=0), width, 10), rank=2)


def mobile() -> onnx.ModelProto:
    """Depthwise convolutions with squeeze-and-excitation, odd channels, concatenation, split, pools, an argmax."""
    net, channels = Network(2, 6, 11, 11), 14
    x = net.op("HardSwish", net.conv("x", 6, channels, 1))
    x = net.op("LeakyRelu", net.conv(x, channels, channels, 5, channels, strides=[2, 2]), alpha=0.1)
    gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", x), channels, 5, 1))
    x = net.op("Mul", x, net.op("Sigmoid", net.conv(gate, 5, channels, 1)))
    left, right = net.op("Split", x, net.constant([5, 9], "int64"), outputs=2, axis=1)
    pooled = net.op("MaxPool", right, kernel_shape=[3, 3], pads=[1] * 4)
    x = net.op("Concat", pooled, net.conv(left, 5, 7), left, axis=1)
    first = net.op("Cast", net.op("ArgMax", x, axis=1, keepdims=1), to=TensorProto.FLOAT)
    return net.model(net.op("Softmax", net.op("Add", net.conv(x, 21, 7, 1), first), axis=1))


def decoder() -> onnx.ModelProto:
    """Transposed convolutions, resized skips, padding, group norms as reshapes around an instance norm."""
    net = Network(1, 4, 6, 5)
    down = net.op("Relu", net.conv("x", 4, 8, strides=[2, 2]))
    up = net.conv(down, 8, 6, 4, kind="ConvTranspose", strides=[2, 2], pads=[1] * 4)
    scales = net.constant([1, 1, 2, 2])
    skip = net.op("Resize", down, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
    normal = net.op("InstanceNormalization", net.reshape(skip, 1, 2, -1), net.weight(2), net.weight(2))
    x = net.op("Concat", up, net.reshape(normal, 1, 8, 6, 6), axis=1)
    x = net.op("Pad", x, net.constant([0, 0, 1, 0, 0, 0, 0, 1], "int64"))
    return net.model(net.op("Tanh", net.conv(x, 14, 3)))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "shuffles": shuffles,
    "windows": windows,
    "hierarchy": hierarchy,
    "mobile": mobile,
    "decoder": decoder,
}
