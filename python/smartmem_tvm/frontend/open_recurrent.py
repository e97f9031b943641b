# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of a model with an open length: each gets the number of its steps, where its loop ends.

A layer that runs backwards begins at the last step, and its last state is that of the last step. ONNX's operators have an
input for that, the number of steps of each sequence, which most files leave out.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from smartmem_tvm.frontend import walk_graph as walk

_LAYERS = (("", "GRU"), ("", "LSTM"), ("", "RNN"), ("com.microsoft", "DynamicQuantizeLSTM"))
_STEPS = 4  # the place of the numbers of steps among the inputs of a layer: by definition of ONNX


def with_steps(proto: onnx.ModelProto) -> None:
    """Give recurrent layers the size of their dimension of steps as their numbers of steps, in place."""
    graph, nodes = proto.graph, []
    for node in graph.node:
        if (walk.domain_of(node), node.op_type) in _LAYERS and not (len(node.input) > _STEPS and node.input[_STEPS]):
            nodes += _numbers(node, graph)
        nodes.append(node)
    if len(nodes) == len(graph.node):
        return
    kept = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _numbers(node: onnx.NodeProto, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return nodes that compute the numbers of steps of a layer from the shape of its input, which they become."""
    first = next((each.i for each in node.attribute if each.name == "layout"), 0)  # 1: sequences before steps
    name = f"{node.output[0] or node.name}_steps"
    for place, axis in (("steps", first), ("sequences", 1 - first)):
        graph.initializer.append(numpy_helper.from_array(np.array([axis], "int64"), f"{name}_{place}_axis"))
    node.input.extend([""] * (_STEPS + 1 - len(node.input)))
    node.input[_STEPS] = name
    parts = [
        helper.make_node("Gather", [f"{name}_shape", f"{name}_{place}_axis"], [f"{name}_{place}"])
        for place in ("steps", "sequences")
    ]
    return [
        helper.make_node("Shape", [node.input[0]], [f"{name}_shape"]),
        *parts,
        # As int64, which is no type of ONNX's here: of one sequence the length itself then takes its place.
        helper.make_node("Expand", [f"{name}_steps", f"{name}_sequences"], [name]),
    ]
