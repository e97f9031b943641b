# SPDX-License-Identifier: Apache-2.0
"""Networks that benchmarks write node by node, with weights drawn at random: layers of CNNs and of encoders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """A graph that grows node by node; each function takes and returns names of tensors."""

    def __init__(self, shape: tuple[int, ...] = ()):
        self.shape, self.nodes, self.known, self.rng = shape, [], [], np.random.default_rng(0)

    def op(self, name: str, *inputs: str, **attributes) -> str:
        """One operator."""
        number = len(self.nodes)
        self.nodes.append(helper.make_node(name, list(inputs), [f"t{number}"], f"n{number}", **attributes))
        return self.nodes[-1].output[0]

    def constant(self, array: np.ndarray) -> str:
        """A constant."""
        self.known.append(numpy_helper.from_array(array, f"c{len(self.known)}"))
        return self.known[-1].name

    def weight(self, *shape: int, depth: int) -> str:
        """Random numbers that keep the variance of sums over `depth` terms."""
        return self.constant((self.rng.standard_normal(shape) / np.sqrt(depth)).astype("float32"))

    def conv(self, x: str, into: int, out: int, size: int, stride: int = 1, groups: int = 1) -> str:
        """A convolution with a bias."""
        w = self.weight(out, into // groups, size, size, depth=into // groups * size * size)
        pads, bias = [size // 2] * 4 if size < 16 else [0] * 4, self.weight(out, depth=25)
        return self.op("Conv", x, w, bias, strides=[stride] * 2, pads=pads, group=groups, kernel_shape=[size] * 2)

    def linear(self, x: str, into: int, out: int) -> str:
        """A matmul with a bias."""
        return self.op("Add", self.op("MatMul", x, self.weight(into, out, depth=into)), self.weight(out, depth=25))

    def norm(self, x: str, width: int) -> str:
        """A layer norm."""
        ones, zeros = self.constant(np.ones(width, "float32")), self.constant(np.zeros(width, "float32"))
        return self.op("LayerNormalization", x, ones, zeros, axis=-1)

    def gelu(self, x: str) -> str:
        """GELU, as exporters write it."""
        half, one, root = (self.constant(np.float32(each)) for each in (0.5, 1.0, np.sqrt(2.0)))
        inner = self.op("Add", self.op("Erf", self.op("Div", x, root)), one)
        return self.op("Mul", self.op("Mul", x, inner), half)

    def attention(self, x: str, tokens: int | None, width: int, heads: int, mask: str = "") -> str:
        """Self-attention over so many tokens, over any number with None; `mask` is added to the scores."""
        rows = [0, 0] if tokens is None else [-1, tokens]
        split = self.constant(np.array([*rows, heads, width // heads], "int64"))
        joined = self.constant(np.array([*rows, width], "int64"))
        q, k, v = (self.op("Reshape", self.linear(x, width, width), split) for _ in range(3))
        q, v = (self.op("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
        k = self.op("Transpose", k, perm=[0, 2, 3, 1])
        scale = self.constant(np.float32((width // heads) ** -0.5))
        scores = self.op("Mul", self.op("MatMul", q, k), scale)
        weights = self.op("Softmax", self.op("Add", scores, mask) if mask else scores, axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", mixed, joined), width, width)

    def encoder(self, x: str, tokens: int | None, width: int, heads: int, mask: str = "", inner: int = 0) -> str:
        """A layer of BERT, with `inner` numbers in its middle, 4 * `width` by default."""
        inner = inner or 4 * width
        x = self.norm(self.op("Add", self.attention(x, tokens, width, heads, mask), x), width)
        hidden = self.linear(self.gelu(self.linear(x, width, inner)), inner, width)
        return self.norm(self.op("Add", hidden, x), width)

    def model(self, last: str, given: Sequence[onnx.ValueInfoProto] = ()) -> onnx.ModelProto:
        """The model that returns `last`; its inputs are `given`, by default ``x`` of the graph's shape."""
        given = given or [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        graph = helper.make_graph(self.nodes, "network", given, [onnx.ValueInfoProto(name=last)], self.known)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)
