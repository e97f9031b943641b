# SPDX-License-Identifier: Apache-2.0
"""Cut inside of branches and loop bodies: replace a node by its graph, and keep parts of a nested graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...frontend.expand_functions import opset_of
from ...frontend.walk_graph import reads
from .case import Case, Evaluate
from .cuts import part, typed

Path = tuple[tuple[int, str], ...]
"""The path to a nested graph: number of a node and name of its attribute, then the same in that graph."""
_CUT = "/cut"


def paths(graph: onnx.GraphProto) -> Iterator[Path]:
    """Yield the path to each nested graph, outer ones first."""
    found = [(n, a.name, a.g) for n, node in enumerate(graph.node) for a in node.attribute if a.HasField("g")]
    for number, name, _ in found:
        yield ((number, name),)
    for number, name, nested in found:
        yield from (((number, name), *rest) for rest in paths(nested))


def nested_graph(graph: onnx.GraphProto, path: Path) -> onnx.GraphProto:
    """Return the graph at the end of a path (a reference, not a copy)."""
    for number, name in path:
        graph = next(each.g for each in graph.node[number].attribute if each.name == name)
    return graph


def opened(case: Case, number: int, evaluate: Evaluate) -> Iterator[Case]:
    """Yield models with a node replaced by one of its graphs: a branch of an If, the first iteration of a loop."""
    for attribute in case.model.graph.node[number].attribute:
        if attribute.HasField("g"):
            model = _opened(case.model, number, attribute.name)
            whole = _stated(Case(model, case.arrays), evaluate)
            less = whole and part(whole, range(len(whole.model.graph.node)), evaluate)
            if less:
                yield less


def inner_part(case: Case, path: Path, kept: Sequence[int], evaluate: Evaluate) -> Case | None:
    """Return the model with only the nodes numbered `kept` in a nested graph.

    A cut-off tensor that they read becomes an input of the model, with its value if that graph is run, for a loop in
    its first iteration.

    Returns
    -------
    Case or None
        None if one of these values is not known.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inner = nested_graph(model.graph, path)
    cut = {name for node in _left_out(inner, kept) for name in node.output if name}
    nodes = [inner.node[number] for number in kept]
    results = [value.name for value in inner.output if value.name in cut]
    if any(each.op_type == "Identity" and each.input[0].endswith(_CUT) for each in _left_out(inner, kept)):
        return None  # the cut would add it again
    wanted = list(dict.fromkeys([*(name for node in nodes for name in reads(node) if name in cut), *results]))
    values = evaluate(_flat(case, path), wanted)
    if not all(name in values for name in wanted):
        return None
    # A result of a nested graph has to be the output of one of its nodes.
    nodes = [helper.make_node("Identity", [name + _CUT], [name]) for name in results] + [*nodes]
    given = {name + _CUT if name in results else name: values[name] for name in wanted}
    copies = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del inner.node[:]
    inner.node.extend(copies)
    model.graph.input.extend(typed(name, value) for name, value in given.items())
    whole = Case(model, {**case.arrays, **given})
    return part(whole, range(len(model.graph.node)), evaluate)


def _left_out(graph: onnx.GraphProto, kept: Sequence[int]) -> list[onnx.NodeProto]:
    return [node for number, node in enumerate(graph.node) if number not in {*kept}]


def _flat(case: Case, path: Path) -> Case:
    """Return the model with the graphs along the path inlined in place of their nodes, under their own names."""
    model, offset = case.model, 0
    for number, name in path:
        at = offset + number
        before = len(_entry(model.graph.node[at], name))
        model, offset = _opened(model, at, name), at + before
    return Case(model, case.arrays)


def _opened(model: onnx.ModelProto, number: int, name: str) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph, node = copy.graph, copy.graph.node[number]
    body = next(each.g for each in node.attribute if each.name == name)
    nodes = [
        *graph.node[:number],
        *_entry(node, name),
        *body.node,
        *_exit(node, body, opset_of(model)),
        *graph.node[number + 1 :],
    ]
    constants = [*graph.initializer, *body.initializer]
    copies = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    stored = [onnx.TensorProto.FromString(each.SerializeToString()) for each in constants]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(copies)
    graph.initializer.extend(stored)
    return copy


def _entry(node: onnx.NodeProto, name: str) -> list[onnx.NodeProto]:
    """Return nodes that compute the inputs of a nested graph, for a loop those of its first iteration."""
    body = next(each.g for each in node.attribute if each.name == name)
    inputs = [value.name for value in body.input]
    if node.op_type == "Loop":
        first = [_constant(inputs[0], np.array(0)), _constant(inputs[1], np.array(True))]
        return first + [helper.make_node("Identity", [a], [b]) for a, b in zip(node.input[2:], inputs[2:])]
    if node.op_type != "Scan":
        return []
    scanned = _numbers(node, "num_scan_inputs", [0])[0]
    states = len(inputs) - scanned
    axes = _numbers(node, "scan_input_axes", [0] * scanned)
    made = [helper.make_node("Identity", [a], [b]) for a, b in zip(node.input[:states], inputs[:states])]
    zero = f"{node.output[0]}/first"
    for source, wanted, axis in zip(node.input[states:], inputs[states:], axes):
        made.append(helper.make_node("Gather", [source, zero], [wanted], axis=axis))
    return [_constant(zero, np.array(0)), *made]


def _exit(node: onnx.NodeProto, body: onnx.GraphProto, opset: int) -> list[onnx.NodeProto]:
    """Return nodes that compute the results of a node from those of its graph."""
    results = [value.name for value in body.output][1 if node.op_type == "Loop" else 0 :]
    states = {"Loop": len(node.input) - 2, "Scan": len(body.input) - _numbers(node, "num_scan_inputs", [0])[0]}
    count = states.get(node.op_type, len(results))
    made = []
    for number, (source, wanted) in enumerate(zip(results, node.output)):
        if wanted and number < count:
            made.append(helper.make_node("Identity", [source], [wanted]))
        elif wanted:
            axis = _numbers(node, "scan_output_axes", [0] * len(results))[number - count]
            axes = f"{wanted}/axes"
            if opset < 13:
                made.append(helper.make_node("Unsqueeze", [source], [wanted], axes=[axis]))
            else:
                made += [_constant(axes, np.array([axis])), helper.make_node("Unsqueeze", [source, axes], [wanted])]
    return made


def _numbers(node: onnx.NodeProto, name: str, usual: list[int]) -> list[int]:
    found = [list(each.ints) or [each.i] for each in node.attribute if each.name == name]
    return found[0] if found else usual


def _constant(name: str, value: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))


def _stated(case: Case, evaluate: Evaluate) -> Case | None:
    """Return the model with its outputs declared in their present shapes; None if these are unknown."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    names = [value.name for value in model.graph.output]
    values = evaluate(case, names)
    if not all(name in values for name in names):
        return None
    del model.graph.output[:]
    model.graph.output.extend(typed(name, values[name]) for name in names)
    return Case(model, case.arrays)
