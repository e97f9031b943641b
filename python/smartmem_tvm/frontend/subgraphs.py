# SPDX-License-Identifier: Apache-2.0
"""Copy a nested graph under new names."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from smartmem_tvm.frontend import walk_graph as walk


class Body:
    """A nested graph that is copied into the graph around it, any number of times.

    Its constants are shared by the copies.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.
    prefix : str
        Precedes the names of its tensors and nodes; no other name in the model begins with it.

    Attributes
    ----------
    constants : list of onnx.TensorProto
        Its initializers and Constant nodes, under their new names.
    size : int
        Nodes of a copy.
    """

    def __init__(self, graph: onnx.GraphProto, prefix: str):
        self._graph, self._prefix = graph, prefix
        self._inner = {
            name
            for each in walk.graphs(graph)
            for name in (
                *(value.name for value in each.input),
                *(tensor.name for tensor in each.initializer),
                *(output for node in each.node for output in node.output),
            )
            if name
        }
        self.inputs = [value.name for value in graph.input]
        self.constants = [_renamed(tensor, prefix + tensor.name) for tensor in graph.initializer]
        self._nodes = []
        for node in graph.node:
            value = constant_of(node)
            if value is None:
                self._nodes.append(node)
            else:
                self.constants.append(_renamed(value, prefix + node.output[0]))
        self._shared = {each.name.removeprefix(prefix): each.name for each in self.constants}
        self.size = len(self._nodes)

    def shape(self, number: int) -> list[int]:
        """Return the sizes of an input that is one number: [1] if the graph gives it a dimension, otherwise []."""
        return [1 for _ in self._graph.input[number].type.tensor_type.shape.dim[:1]]

    def copy(self, number: int, inputs: Mapping[str, str]) -> tuple[list[onnx.NodeProto], list[str]]:
        """Return a copy's nodes and the names of its results; `inputs` maps the graph's inputs to tensors."""
        names = {name: f"{self._prefix}{number}/{name}" for name in self._inner} | self._shared | dict(inputs)
        nodes = []
        for node in self._nodes:
            nodes.append(onnx.NodeProto())
            nodes[-1].CopyFrom(node)
            nodes[-1].name = f"{self._prefix}{number}/{walk.node_label(node)}"
            _rename(nodes[-1], names)
        return nodes, [names.get(value.name, value.name) for value in self._graph.output]


def constant_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor of a Constant node, None for another node or form."""
    if node.op_type != "Constant" or len(node.attribute) != 1 or node.attribute[0].name != "value":
        return None
    return node.attribute[0].t


def _renamed(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Give the tensors of a node, and of the graphs nested in it, their new names."""
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
                value.name = names.get(value.name, value.name)
            for inner in graph.node:
                _rename(inner, names)
