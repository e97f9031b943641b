# SPDX-License-Identifier: Apache-2.0
"""Keys and values in one tensor, ``past[0]`` and ``past[1]``, as older GPT-2 has them: an input for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper, numpy_helper

from smartmem_tvm.frontend import expand_functions
from smartmem_tvm.frontend import walk_graph as walk

_END = 2**63 - 1  # a bound that stands for the end


def source(name: str, makers: Mapping[str, onnx.NodeProto]) -> str:
    """Return the tensor that `name` is another name of."""
    while (node := makers.get(name)) is not None and len(node.input) == 1 and node.op_type in ("Identity", "Concat"):
        name = node.input[0]
    return name


def unstacked(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, tuple[str, str]]]:
    """Return the model with two inputs and two results where keys and values are one behind the other in one tensor."""
    copy = expand_functions.copy_of(proto)
    graph, names = copy.graph, {}
    for name in [each.name for each in graph.output]:
        result = next(each for each in graph.output if each.name == name)
        makers = {name: node for node in graph.node for name in node.output}
        inputs = {each.name: each for each in graph.input}
        parts = _stack(result.name, makers)
        sources = [source(node.input[0], makers) for node in parts if node is not None and node.op_type == "Concat"]
        taken = [makers.get(each) for each in sources]
        if len(taken) != 2 or any(each is None or each.op_type != "Gather" for each in taken):
            continue
        past = inputs.get(taken[0].input[0])
        if past is None or [_place(each, copy) for each in taken] != [0, 1] or taken[1].input[0] != past.name:
            continue
        if any(
            past.name in walk.reads(node) for node in graph.node if node not in (*taken, *_shapes_of(graph, past.name))
        ):
            continue
        _take_apart(graph, past, result, parts, taken)
        names[past.name], names[result.name] = ((f"{each}.0", f"{each}.1") for each in (past.name, result.name))
    return (copy, names) if names else (proto, {})


def _stack(name: str, makers: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto | None]:
    """Return the makers of what is stacked along a new first dimension; none for another tensor."""
    node = makers.get(name)
    if node is None or node.op_type != "Concat" or next(each.i for each in node.attribute if each.name == "axis"):
        return []
    wide = [makers.get(each) for each in node.input]
    if any(each is None or each.op_type != "Unsqueeze" for each in wide):
        return []
    return [makers.get(source(each.input[0], makers)) for each in wide]


def _place(node: onnx.NodeProto, model: onnx.ModelProto) -> int | None:
    """Return the place that a Gather along the first dimension takes, if it is a constant without dimensions."""
    if next((each.i for each in node.attribute if each.name == "axis"), 0):
        return None
    constants = {each.name: each for each in model.graph.initializer}
    constants |= {each.output[0]: each.attribute[0].t for each in model.graph.node if each.op_type == "Constant"}
    tensor = constants.get(node.input[1])
    return None if tensor is None or tensor.dims else int(numpy_helper.to_array(tensor))


def _shapes_of(graph: onnx.GraphProto, name: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == "Shape" and node.input[0] == name]


def _take_apart(
    graph: onnx.GraphProto,
    past: onnx.ValueInfoProto,
    result: onnx.ValueInfoProto,
    parts: Sequence[onnx.NodeProto],
    taken: Sequence[onnx.NodeProto],
) -> None:
    """Put two inputs and two results in the place of one of each."""
    for values, whole in ((graph.input, past), (graph.output, result)):
        at = list(values).index(whole)
        ones = [onnx.ValueInfoProto(), onnx.ValueInfoProto()]
        for number, (one, part) in enumerate(zip(ones, parts, strict=True)):
            one.CopyFrom(whole)
            one.name = f"{whole.name}.{number}"
            if whole is result:
                graph.node.append(helper.make_node("Identity", [part.output[0]], [one.name]))
            del one.type.tensor_type.shape.dim[:1]
        kept = [*list(values)[:at], *ones, *list(values)[at + 1 :]]
        del values[:]
        values.extend(kept)
    for number, node in enumerate(taken):
        node.op_type = "Identity"
        node.input[:] = [f"{past.name}.{number}"]
        del node.attribute[:]
    while nodes := _shapes_of(graph, past.name):
        attrs = {each.name: each.i for each in nodes[0].attribute}
        _measure_one(graph, nodes[0], f"{past.name}.0", attrs.get("start", 0), attrs.get("end", _END))


def _measure_one(graph: onnx.GraphProto, node: onnx.NodeProto, name: str, start: int, end: int) -> None:
    """Let a Shape of what was stacked see one part of two."""
    parts = [f"{node.output[0]}_{part}" for part in ("of_one", "two", "whole", "start", "end")]
    made = [
        helper.make_node("Shape", [name], [parts[0]]),
        helper.make_node("Constant", [], [parts[1]], value_ints=[2]),
        helper.make_node("Concat", [parts[1], parts[0]], [parts[2]], axis=0),
        helper.make_node("Constant", [], [parts[3]], value_ints=[start]),
        helper.make_node("Constant", [], [parts[4]], value_ints=[end]),
        helper.make_node("Slice", parts[2:], [node.output[0]]),
    ]
    at = list(graph.node).index(node)
    nodes = [*list(graph.node)[:at], *made, *list(graph.node)[at + 1 :]]
    del graph.node[:]
    graph.node.extend(nodes)
