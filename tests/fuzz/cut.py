# SPDX-License-Identifier: Apache-2.0
"""The part of a case that makes some of its results."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import reference
from .case import Case, reads


def cut(case: Case, outputs: list[str], inputs: list[str] = (), values: dict | None = None) -> Case:
    """The part of a graph between some tensors, which become inputs with the values that they had, and some results."""
    values = values or values_of(case)
    needed, nodes = set(outputs), []
    for node in reversed(case.model.graph.node):
        if needed & (set(node.output) - set(inputs)):
            nodes.insert(0, node)
            needed |= reads(node)
    made = {name for node in nodes for name in node.output}
    stated = [tensor for tensor in case.model.graph.initializer if tensor.name in needed]
    names = [name for name in case.inputs if name in needed]
    names += [name for name in inputs if name in needed and name not in made]
    found = {name: values[name] for name in names}
    graph = helper.make_graph(nodes, "drawn", [info(*item) for item in found.items()], [], stated)
    graph.output.extend(info(name, values[name]) for name in outputs)
    model = helper.make_model(graph, opset_imports=case.model.opset_import, ir_version=case.model.ir_version)
    return Case(model, found, case.options)


def values_of(case: Case) -> dict[str, np.ndarray]:
    """All tensors of a case."""
    stated = {tensor.name: numpy_helper.to_array(tensor) for tensor in case.model.graph.initializer}
    return {**stated, **case.inputs, **reference.every(case)}


def info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    """A tensor as a model states it."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
