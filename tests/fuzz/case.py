# SPDX-License-Identifier: Apache-2.0
"""One case: a model, the numbers it runs on, and what the compiler is asked to do. A file holds all three."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

SWITCHES = ("rewrite", "merge_projections", "eliminate", "simplify", "fuse", "fuse_attention", "layout", "schedule")
"""The techniques of `smartmem_tvm.Options` that are of effect on every target, or can be switched off on every one."""


@dataclass
class Case:
    """What is compiled and run.

    Attributes
    ----------
    model : onnx.ModelProto
    inputs : dict
        Name -> array, in the order of the model's inputs.
    options : dict
        What differs from the default `smartmem_tvm.Options`; with a planner for ``layout`` goes a profile store that
        makes any layout the best one.
    drawn : dict
        How it came about: operators that were refused while drawing it.
    """

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    options: dict[str, bool | str] = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)

    @property
    def operators(self) -> list[str]:
        """The operators of the graph, each once."""
        return sorted({node.op_type for node in all_nodes(self.model.graph)})

    def save(self, path: Path, **facts: str) -> None:
        """Write one file: the inputs are the default values of the model's inputs, options and facts its metadata."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self.inputs.items())
        onnx.helper.set_model_props(model, {"options": json.dumps(self.options), **facts})
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)


def load(path: Path) -> Case:
    """Read what `Case.save` has written."""
    model = onnx.load(path)
    values = {tensor.name: tensor for tensor in model.graph.initializer}
    inputs = {value.name: numpy_helper.to_array(values.pop(value.name)) for value in model.graph.input}
    del model.graph.initializer[:]
    model.graph.initializer.extend(values.values())
    facts = {entry.key: entry.value for entry in model.metadata_props}
    return Case(model, inputs, json.loads(facts.get("options", "{}")))


def nested_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Branches of an If, the body of a loop."""
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of those in it."""
    for node in graph.node:
        yield node
        for inner in nested_graphs(node):
            yield from all_nodes(inner)


def reads(node: onnx.NodeProto) -> set[str]:
    """The tensors around a node that it reads, in graphs of its own too."""
    found = {name for name in node.input if name}
    for graph in nested_graphs(node):
        inside = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        found |= {name for inner in graph.node for name in reads(inner)} | {value.name for value in graph.output}
        found -= inside | {name for inner in graph.node for name in inner.output}
    return found
