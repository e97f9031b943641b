# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows GatherBlockQuantized reads, and which are the weight of a MatMulNBits as well."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import numpy_helper

from smartmem_tvm.frontend.load_weights import Weights
from smartmem_tvm.frontend.walk_graph import nodes

_ROWS, _PRODUCT = "com.microsoft.GatherBlockQuantized", "com.microsoft.MatMulNBits"


def readers_of_tied_tables(graph: onnx.GraphProto, weights: Weights) -> set[str]:
    """Return the names of the operators of a graph that gather rows of the weight of a product.

    Files have such a table once, perhaps behind a Reshape, or twice with the same numbers. A name that two operators
    have is not among them.
    """
    constants, names = _Constants(graph, weights), Counter(each.name for each in nodes(graph))
    products = [each for each in graph.node if each.op_type == _PRODUCT]
    tables = [each for each in graph.node if each.op_type == _ROWS and names[each.name] == 1]
    return {node.name for node in tables if any(constants.same(node, each) for each in products)}


class _Constants:
    def __init__(self, graph: onnx.GraphProto, weights: Weights):
        self.tensors = {each.name: each for each in graph.initializer}
        self.reshaped = {each.output[0]: each.input[0] for each in graph.node if each.op_type == "Reshape"}
        self.weights = weights

    def same(self, rows: onnx.NodeProto, product: onnx.NodeProto) -> bool:
        """Whether the table of rows is the weight of a product: both in float32, with the groups along the depth."""
        bits, block = _number(product, "bits", 4), _number(product, "block_size", 0)
        if (_number(rows, "bits", 4), _number(rows, "block_size", 128)) != (bits, block):
            return False
        table, scales = self.tensor(rows, 0), self.tensor(rows, 2)
        known = None not in (table, scales) and table.data_type == onnx.TensorProto.UINT8
        if not known or scales.data_type != onnx.TensorProto.FLOAT or len(table.dims) != 2 or len(scales.dims) != 2:
            return False
        depth, columns = _number(product, "K", 0), _number(product, "N", 0)
        by_rows = _number(rows, "gather_axis", 0) in (0, -2) and _number(rows, "quantize_axis", 1) in (1, -1)
        whole = list(table.dims) == [columns, depth * bits // 8] and list(scales.dims) == [columns, -(-depth // block)]
        return by_rows and whole and depth % block == 0 and not _given(product, 4) and self._equal(rows, product)

    def _equal(self, rows: onnx.NodeProto, product: onnx.NodeProto) -> bool:
        """Whether the codes, the scales, and the zero points are the same numbers."""
        for mine, other in ((2, 2), (3, 3), (0, 1)):  # the largest last
            if _given(rows, mine) != _given(product, other):
                return False
            if _given(rows, mine) and not self._alike(self.tensor(rows, mine), self.tensor(product, other)):
                return False
        return True

    def _alike(self, one: onnx.TensorProto | None, other: onnx.TensorProto | None) -> bool:
        if one is None or other is None or one.data_type != other.data_type:
            return False
        if one.name == other.name:
            return True
        sizes = [np.prod(each.dims, dtype="int64") for each in (one, other)]
        return sizes[0] == sizes[1] and np.array_equal(self._values(one), self._values(other))

    def _values(self, tensor: onnx.TensorProto) -> np.ndarray:
        held = self.weights.hold(tensor)
        return (self.weights.array(tensor.name) if held else numpy_helper.to_array(tensor)).reshape(-1)

    def tensor(self, node: onnx.NodeProto, position: int) -> onnx.TensorProto | None:
        """Return the constant that an input is, or that it is reshaped from; None if there is none."""
        name = node.input[position] if _given(node, position) else ""
        while name not in self.tensors and name in self.reshaped:
            name = self.reshaped[name]
        return self.tensors.get(name)


def _given(node: onnx.NodeProto, position: int) -> bool:
    return len(node.input) > position and bool(node.input[position])


def _number(node: onnx.NodeProto, name: str, usual: int) -> int:
    return next((each.i for each in node.attribute if each.name == name), usual)
