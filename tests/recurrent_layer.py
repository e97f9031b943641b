# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer with random weights, as a graph of ONNX."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent_layer(op: str, hidden: int, steps: int, batch: int, ways: int = 1, lengths=None, **attributes):
    """Return a model of one layer with input ``x``, [steps, batch, 5], and results ``y`` and ``h``."""
    random = np.random.default_rng(1)
    rows = GATES[op] * hidden
    shapes = {"w": (ways, rows, 5), "r": (ways, rows, hidden), "b": (ways, 2 * rows)}
    values = {name: (random.standard_normal(shape) / 4).astype("float32") for name, shape in shapes.items()}
    if lengths is not None:
        values["lengths"] = np.array(lengths, "int32")
    inputs = ["x", "w", "r", "b", *(["lengths"] if lengths is not None else [])]
    direction = "bidirectional" if ways == 2 else "forward"
    node = helper.make_node(op, inputs, ["y", "h"], hidden_size=hidden, direction=direction, **attributes)
    sizes = {"x": (steps, batch, 5), "y": (steps, ways, batch, hidden), "h": (ways, batch, hidden)}
    told = {name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size) for name, size in sizes.items()}
    tensors = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph([node], "layer", [told["x"]], [told["y"], told["h"]], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
