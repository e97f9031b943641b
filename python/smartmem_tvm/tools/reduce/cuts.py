# SPDX-License-Identifier: Apache-2.0
"""Cut parts of an ONNX graph into separate models.

Any set of nodes makes a model. A tensor that a node reads and that no node of the set computes becomes an input with
its value in the whole model, or an initializer if it does not depend on the numbers in the inputs. A tensor that no
node of the set reads becomes an output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...frontend.walk_graph import graphs, reads
from .case import Case, Evaluate

_OF_SHAPES_ONLY = ("Shape", "Size")  # operators whose result does not depend on the numbers in their operand


def part(case: Case, kept: Sequence[int], evaluate: Evaluate, outputs: Sequence[str] | None = None) -> Case | None:
    """Return the nodes numbered `kept` as a separate model.

    Parameters
    ----------
    outputs : sequence of str, optional
        Its outputs: by default the remaining ones of the model, and unread tensors.

    Returns
    -------
    Case or None
        None if there are no outputs, or the value of a tensor at a cut is unknown.
    """
    graph = case.model.graph
    nodes = [graph.node[number] for number in kept]
    made = {name for node in nodes for name in node.output if name}
    names = list(dict.fromkeys(name for node in nodes for name in reads(node)))
    outputs = list(dict.fromkeys(_ends(graph, nodes) if outputs is None else outputs))
    stored = {each.name: each for each in graph.initializer}
    cut = [name for name in names if name not in made and name not in stored and name not in case.arrays]
    old = {value.name: value for value in (*graph.input, *graph.output)}
    values = evaluate(case, [*cut, *(name for name in outputs if name not in old)])
    if not (nodes and outputs) or not all(name in values for name in (*cut, *(n for n in outputs if n not in old))):
        return None
    moving = dependent(graph)
    inputs = [name for name in (*case.arrays, *cut) if name in names and (name in case.arrays or name in moving)]
    constants = [stored[name] for name in names if name in stored and name not in case.arrays]
    constants += [numpy_helper.from_array(values[name], name) for name in cut if name not in moving]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.CopyFrom(
        helper.make_graph(
            nodes,
            graph.name,
            [old[name] if name in old else typed(name, values[name]) for name in inputs],
            [old[name] if name in old else typed(name, values[name]) for name in outputs],
            constants,
        )
    )
    return Case(model, {name: case.arrays[name] if name in case.arrays else values[name] for name in inputs})


def typed(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    """Return the declaration of an input or output that holds `array`."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _ends(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> Iterator[str]:
    made = {name for node in nodes for name in node.output if name}
    old = [each.name for each in graph.output]
    yield from (name for name in old if name in made)
    used = {name for node in graph.node for name in reads(node)} | set(old)
    here = {name for node in nodes for name in reads(node)} | set(old)
    for node in nodes:
        if here.isdisjoint(node.output):
            yield from [name for name in node.output if name in used] or [name for name in node.output if name][:1]


def dependent(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that depend on the numbers in the inputs, not only on their shapes."""
    found = {each.name for each in graph.input}
    for node in graph.node:
        if node.op_type not in _OF_SHAPES_ONLY and not found.isdisjoint(reads(node)):
            found.update(node.output)
    return found


def reaching(graph: onnx.GraphProto, outputs: Sequence[str]) -> list[int]:
    """Return the numbers of the nodes that `outputs` depend on."""
    wanted, found = set(outputs), []
    for number in reversed(range(len(graph.node))):
        node = graph.node[number]
        if not wanted.isdisjoint(node.output):
            wanted.update(reads(node))
            found.append(number)
    return found[::-1]


def bypasses(case: Case, number: int, evaluate: Evaluate) -> Iterator[Case]:
    """Yield the model without one node, whose readers read an operand of the same shape and type instead."""
    graph, node = case.model.graph, case.model.graph.node[number]
    outputs, nested = {each.name for each in graph.output}, _read_in_nested_graphs(graph)
    used = {name for other in graph.node for name in reads(other)} | outputs
    results = [name for name in node.output if name in used]
    if len(results) != 1 or results[0] in nested:
        return
    values = evaluate(case, [*results, *filter(None, node.input)])
    same = [name for name in dict.fromkeys(node.input) if _alike(values.get(name), values.get(results[0]))]
    free = {name for other in graph.node for name in other.output} - outputs
    for name in same if results[0] not in outputs else [name for name in same if name in free]:
        yield from _without(case, number, results[0], name, evaluate)


def _alike(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    return first is not None and second is not None and (first.shape, first.dtype) == (second.shape, second.dtype)


def _without(case: Case, number: int, old: str, new: str, evaluate: Evaluate) -> Iterator[Case]:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.node[number]
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    for value in model.graph.output:
        value.name = new if value.name == old else value.name
    less = part(Case(model, case.arrays), range(len(model.graph.node)), evaluate)
    if less is not None:
        yield less


def _read_in_nested_graphs(graph: onnx.GraphProto) -> set[str]:
    inner = [each for each in graphs(graph) if each is not graph]
    return {name for each in inner for node in each.node for name in node.input} | {
        value.name for each in inner for value in each.output
    }
