# SPDX-License-Identifier: Apache-2.0
"""Graphs within nodes: what they read, and what remains of a case where its branches and loops are written out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import reference
from .case import Case, all_nodes, nested_graphs

CONTROL = ("If", "Loop", "Scan")
_DECIDING = 3  # inputs, of which all ways are run


def written_out(case: Case) -> Case:
    """A case without branches and loops that computes the same for the inputs that this one has.

    Raises
    ------
    reference.Refused
        If ONNX Runtime does not run the case.
    """
    while any(node.op_type in CONTROL for node in case.model.graph.node):
        case = _one_level(case)
    return case


def ways(case: Case) -> Iterator[Case]:
    """The case, first with the inputs that it has, then with all others for those that decide on branches."""
    names = _conditions(case.model)[:_DECIDING]
    own = tuple(bool(case.inputs[name].any()) for name in names)
    for way in sorted(product((False, True), repeat=len(names)), key=lambda way: way != own):
        chosen = {name: np.full(case.inputs[name].shape, value) for name, value in zip(names, way)}
        yield Case(case.model, {**case.inputs, **chosen}, case.options, case.drawn)


def _conditions(model: onnx.ModelProto) -> list[str]:
    """Inputs of one truth value that decide, or what is their contrary, which branch of an If is taken."""
    nodes = list(all_nodes(model.graph))
    decide = {node.input[0] for node in nodes if node.op_type == "If"}
    decide |= {node.input[0] for node in nodes if node.op_type == "Not" and node.output[0] in decide}
    stated = {value.name: value.type.tensor_type for value in model.graph.input if value.name in decide}
    return sorted(name for name, kind in stated.items() if kind.elem_type == onnx.TensorProto.BOOL)


def _one_level(case: Case) -> Case:
    counted, counts = _counted(case)
    values = {**case.inputs, **{t.name: numpy_helper.to_array(t) for t in case.model.graph.initializer}}
    values |= reference.every(counted)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    nodes: list[onnx.NodeProto] = []
    for node in case.model.graph.node:
        found = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "If":
            taken = found["then_branch" if values[node.input[0]].any() else "else_branch"].g
            nodes += _joined(node.output, _copy(taken, {}, f"{node.output[0]}/", nodes))
        elif node.op_type == "Loop":
            nodes += _loop(node, found["body"].g, len(values[counts[node.output[0]]]), nodes)
        elif node.op_type == "Scan":
            nodes += _scan(
                node, {name: helper.get_attribute_value(each) for name, each in found.items()}, values, nodes
            )
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return Case(model, case.inputs, case.options)


def _counted(case: Case) -> tuple[Case, dict[str, str]]:
    """The case with a further result of each Loop, as long as the loop runs; the names of these."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    counts = {}
    for node in model.graph.node:
        if node.op_type == "Loop":
            body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
            name = f"{node.output[0]}/number"
            body.node.append(helper.make_node("Identity", [body.input[0].name], [name]))
            body.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, []))
            node.output.append(f"{name} of all")
            counts[node.output[0]] = f"{name} of all"
    return Case(model, case.inputs), counts


def _copy(graph: onnx.GraphProto, given: Mapping[str, str], prefix: str, nodes: list) -> list[str]:
    """Add a copy of a graph's nodes under new names; the names of its results."""
    inner = {name for node in all_nodes(graph) for name in node.output if name}
    inner |= {value.name for node in all_nodes(graph) for each in nested_graphs(node) for value in each.input}
    names = {name: prefix + name for name in inner} | {
        tensor.name: prefix + tensor.name for tensor in graph.initializer
    }
    names |= given
    for tensor in graph.initializer:
        nodes.append(helper.make_node("Constant", [], [names[tensor.name]], value=tensor))
    for node in graph.node:
        nodes.append(_renamed(node, names))
    return [names.get(value.name, value.name) for value in graph.output]


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    node = onnx.NodeProto.FromString(node.SerializeToString())
    node.name = ""  # of several copies, no two of which may have the same
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for graph in nested_graphs(node):
        for value in (*graph.input, *graph.output):
            value.name = names.get(value.name, value.name)
        inner = [_renamed(each, names) for each in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
    return node


def _joined(outputs, results: list[str]) -> list[onnx.NodeProto]:
    return [helper.make_node("Identity", [each], [name]) for each, name in zip(results, outputs) if name]


def _constant(nodes: list, name: str, value: np.ndarray) -> str:
    nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), name)))
    return name


def _loop(node: onnx.NodeProto, body: onnx.GraphProto, count: int, nodes: list) -> list[onnx.NodeProto]:
    prefix, states = node.output[0], list(node.input[2:])
    scanned: list[list[str]] = [[] for _ in node.output[len(states) :]]
    for turn in range(count):
        at = _constant(nodes, f"{prefix}/{turn}", np.int64(turn))
        true = _constant(nodes, f"{prefix}/{turn}?", np.array(True))
        given = dict(zip([value.name for value in body.input], [at, true, *states]))
        results = _copy(body, given, f"{prefix}/{turn}/", nodes)
        states = results[1 : 1 + len(states)]
        for tensors, result in zip(scanned, results[1 + len(states) :]):
            tensors.append(result)
    ends = _joined(node.output[: len(states)], states)
    for name, tensors in zip(node.output[len(states) :], scanned):
        ends += _stacked(prefix, name, tensors, 0, nodes)
    return ends


def _stacked(prefix: str, name: str, tensors: list[str], axis: int, nodes: list) -> list[onnx.NodeProto]:
    if not name:
        return []
    axes = _constant(nodes, f"{name}/axes", np.array([axis]))
    single = [f"{name}/{number}" for number in range(len(tensors))]
    made = [helper.make_node("Unsqueeze", [each, axes], [one]) for each, one in zip(tensors, single)]
    return [*made, helper.make_node("Concat", single, [name], axis=axis)]


def _scan(node: onnx.NodeProto, stated: Mapping, values: Mapping, nodes: list) -> list[onnx.NodeProto]:
    prefix, body, inputs = node.output[0], stated["body"], stated["num_scan_inputs"]
    first = len(node.input) - inputs
    states, sources = list(node.input[:first]), list(node.input[first:])
    outputs = len(node.output) - first
    in_axes, in_turns = (stated.get(f"scan_input_{what}", [0] * inputs) for what in ("axes", "directions"))
    out_axes, out_turns = (stated.get(f"scan_output_{what}", [0] * outputs) for what in ("axes", "directions"))
    count = values[sources[0]].shape[in_axes[0]]
    scanned: list[list[str]] = [[] for _ in range(outputs)]
    for turn in range(count):
        parts = []
        for number, (source, axis, falling) in enumerate(zip(sources, in_axes, in_turns)):
            at = _constant(nodes, f"{prefix}/{turn}/{number}", np.int64(count - 1 - turn if falling else turn))
            parts.append(f"{prefix}/{turn}/{number} part")
            nodes.append(helper.make_node("Gather", [source, at], [parts[-1]], axis=axis))
        given = dict(zip([value.name for value in body.input], [*states, *parts]))
        results = _copy(body, given, f"{prefix}/{turn}/", nodes)
        states = results[:first]
        for tensors, result in zip(scanned, results[first:]):
            tensors.append(result)
    ends = _joined(node.output[:first], states)
    for name, tensors, axis, falling in zip(node.output[first:], scanned, out_axes, out_turns):
        ends += _stacked(prefix, name, tensors[::-1] if falling else tensors, axis, nodes)
    return ends
