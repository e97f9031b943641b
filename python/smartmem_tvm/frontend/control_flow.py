# SPDX-License-Identifier: Apache-2.0
"""Unroll Loop and Scan, and replace If by the branch that it takes.

An If whose condition is known only at run time computes both branches, which have no side effects, and selects between
the results. This keeps every shape static, and costs little if the branches are small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper

from smartmem_tvm.frontend import fold
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.flatten import Flattening, Refused, flatten
from smartmem_tvm.frontend.sequences import SEQUENCES

OWN_DOMAIN = "smartmem"
_BRANCHES = ["then_branch", "else_branch"]


def take_branches(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model in which each If with a constant condition is replaced by the branch that it takes.

    The other branch, which may have wrong sizes, is not read; weights that only it reads are dropped.
    """
    if not any(node.op_type == "If" for node in model.graph.node):
        return model
    flat = flatten(model, name, {"If": take})
    read = {each for node in flat.graph.node for each in walk.reads(node)} | {each.name for each in flat.graph.output}
    kept = [tensor for tensor in flat.graph.initializer if tensor.name in read]
    del flat.graph.initializer[:]
    flat.graph.initializer.extend(kept)
    return flat


def take(at: Flattening, node: onnx.NodeProto) -> None:
    """Take the branch of an If whose condition is known; keep an If whose condition is not known."""
    condition = at.known(node.input[0])
    if condition is None:
        at.keep(node)
    else:
        _spliced(at, node, _BRANCHES[:1] if condition.any() else _BRANCHES[1:], _named)


def resolve(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model without loops, branches, sequences and optionals; the model itself if it has none.

    Raises
    ------
    UserError
        If a condition or trip count is known only at run time, or the loops become too many nodes.
    """
    if not any(node.op_type in RESOLVED for node in walk.nodes(model.graph)):
        return model
    model = _take_all(model, name)
    flat = fold.fold_shape_arithmetic(flatten(model, name, HANDLERS))
    return flatten(flat, name, {"If": choose})


def _take_all(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Take branches and fold until folding reveals no further condition, such as one on shapes."""
    while (taken := take_branches(model, name)) is not model and _count_ifs(taken) != _count_ifs(model):
        model = fold.fold_shape_arithmetic(taken)
    return model


def _count_ifs(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "If" for node in walk.nodes(model.graph))


def if_(at: Flattening, node: onnx.NodeProto) -> None:
    """Take the branch of a known condition; for a condition of run time inline both and keep an If of names only."""
    branches = {each.name: each.g for each in node.attribute}
    condition = at.known(node.input[0])
    if condition is None and all(each.op_type == "Identity" for graph in branches.values() for each in graph.node):
        at.keep(node)
        return
    if condition is None:
        at.both_ways(node)
        _spliced(at, node, _BRANCHES, _still_an_if)
    else:
        take(at, node)


def _spliced(at: Flattening, node: onnx.NodeProto, taken: list[str], joined: Callable) -> None:
    """Put the nodes of these branches in the place of an If, followed by the nodes that `joined` makes."""
    branches = {each.name: each.g for each in node.attribute}
    copies = [at.body(branches[name], 0, len(node.output)).copy(0, {}) for name in taken]
    results = [names for _, names in copies]
    at.then([*(each for nodes, _ in copies for each in nodes), lambda: joined(at, node, results)])


def _named(at: Flattening, node: onnx.NodeProto, results: list[list[str]]) -> None:
    at.then(at.identity(source, name) for source, name in zip(results[0], node.output, strict=True))


def _still_an_if(at: Flattening, node: onnx.NodeProto, results: list[list[str]]) -> None:
    at.current = node
    if any(name in at.sequences for names in results for name in names):
        raise Refused("its condition is known only at run time and its branches give sequences; make it a constant")
    branches = {}
    for branch, sources in zip(_BRANCHES, results, strict=True):
        named = [at.node("Identity", [source]) for source in sources]
        outputs = [onnx.ValueInfoProto(name=name) for _, name in named]
        branches[branch] = helper.make_graph([each for each, _ in named], branch, [], outputs)
    at.keep(helper.make_node("If", node.input, node.output, name=walk.node_label(node), **branches))


def choose(at: Flattening, node: onnx.NodeProto) -> None:
    """Replace an If of names only by this package's own operators, which no other library reads."""
    branches = {each.name: each.g for each in node.attribute}
    (first, yes), (second, no) = (at.body(branches[name], 0, len(node.output)).copy(0, {}) for name in _BRANCHES)
    label = walk.node_label(node)
    at.then(
        [
            *(*first, *second),
            *(
                helper.make_node("Choose", [node.input[0], *pair], [name], name=label, domain=OWN_DOMAIN)
                for *pair, name in zip(yes, no, node.output, strict=True)
            ),
        ]
    )


def loop(at: Flattening, node: onnx.NodeProto) -> None:
    """Copy the body once for each iteration and connect the states by name; concatenate the scan outputs."""
    trips, condition = [*node.input, "", ""][:2]
    count = at.number(trips, "trip count") if trips else None
    goes_on = bool(at.value(condition, "condition").any()) if condition else True
    states = list(node.input[2:])
    scanned: list[list[str]] = [[] for _ in range(len(node.output) - len(states))]
    body = at.body(_attribute(node, "body").g, 2 + len(states), 1 + len(states) + len(scanned))
    true = at.constant(np.array(True))

    def iterate(number: int, states: list[str], goes_on: bool) -> None:
        at.current = node
        if not goes_on or (count is not None and number >= count):
            finish(states)
            return
        at.spend(max(1, body.size))
        index = at.constant(np.full(body.shape(0), number, "int64"))
        nodes, results = body.copy(number, dict(zip(body.inputs, [index, true, *states], strict=True)))
        at.then([*nodes, lambda: after(number, results)])

    def after(number: int, results: list[str]) -> None:
        at.current = node
        for tensors, result in zip(scanned, results[1 + len(states) :], strict=True):
            tensors.append(result)
        last = count is not None and number + 1 >= count
        stays = last or bool(at.value(results[0], "condition").any())
        iterate(number + 1, results[1 : 1 + len(states)], stays)

    def finish(states: list[str]) -> None:
        at.then(
            [at.identity(source, name) for source, name in zip(states, node.output) if name]
            + [
                each
                for tensors, name in zip(scanned, node.output[len(states) :], strict=True)
                for each in _stacked(at, tensors, 0, name)
            ]
        )

    iterate(0, states, goes_on)


def scan(at: Flattening, node: onnx.NodeProto) -> None:
    """Copy the body once for each place of the scanned axis."""
    if at.opset < 9 and not any(each.name == "scan_input_axes" for each in node.attribute):
        _scan_of_a_batch(at, node)
        return
    inputs = _attribute(node, "num_scan_inputs").i
    if not 0 < inputs <= len(node.input):
        raise Refused(f"its num_scan_inputs is {inputs}, and it has {len(node.input)} inputs; export the model again")
    first = len(node.input) - inputs
    states, sources = list(node.input[:first]), list(node.input[first:])
    outputs = max(0, len(node.output) - len(states))
    body = at.body(_attribute(node, "body").g, len(node.input), len(states) + outputs)
    in_axes, in_turns = (_ints(node, f"scan_input_{what}", inputs) for what in ("axes", "directions"))
    out_axes, out_turns = (_ints(node, f"scan_output_{what}", outputs) for what in ("axes", "directions"))
    shapes = [at.shape(source, "scanned input") for source in sources]
    in_axes = [at.axis(axis, shape) for axis, shape in zip(in_axes, shapes, strict=True)]
    count = shapes[0][in_axes[0]]
    if any(shape[axis] != count for axis, shape in zip(in_axes, shapes, strict=True)):
        raise Refused(f"the axes that it scans are of different lengths, {in_axes} of {shapes}; export the model again")
    scanned: list[list[str]] = [[] for _ in range(outputs)]
    at.spend((body.size + inputs) * count)

    def iterate(number: int, states: list[str]) -> None:
        at.current = node
        if number == count:
            finish(states)
            return
        places = [at.constant(np.array(count - 1 - number if turn else number)) for turn in in_turns]
        parts = [at.node("Gather", [x, i], axis=axis) for x, i, axis in zip(sources, places, in_axes, strict=True)]
        given = dict(zip(body.inputs, [*states, *(name for _, name in parts)], strict=True))
        nodes, results = body.copy(number, given)
        for tensors, result in zip(scanned, results[len(states) :], strict=True):
            tensors.append(result)
        at.then([*(part for part, _ in parts), *nodes, lambda: iterate(number + 1, results[: len(states)])])

    def finish(states: list[str]) -> None:
        made = [at.identity(source, name) for source, name in zip(states, node.output) if name]
        for tensors, axis, turn, name in zip(scanned, out_axes, out_turns, node.output[len(states) :], strict=True):
            made += _stacked(at, tensors[::-1] if turn else tensors, axis, name)
        at.then(made)

    iterate(0, states)


def _scan_of_a_batch(at: Flattening, node: onnx.NodeProto) -> None:
    """Split a Scan from before opset 9, which has a batch, into one Scan for each sample, along its first axis."""
    lengths, *tensors = node.input
    if lengths:
        raise Refused("it has lengths of sequences; leave them out")
    inputs, states = _attribute(node, "num_scan_inputs").i, len(tensors) - _attribute(node, "num_scan_inputs").i
    turns = next((list(each.ints) for each in node.attribute if each.name == "directions"), [0] * inputs)
    batch = at.shape(tensors[-1], "scanned input")[0]
    body, made, found = _attribute(node, "body").g, [], []
    for number in range(batch):
        place = at.constant(np.array(number))
        parts = [at.node("Gather", [each, place], axis=0) for each in tensors]
        found.append([at.name(f"part{each}") if name else "" for each, name in enumerate(node.output)])
        stated = {"num_scan_inputs": inputs, "scan_input_axes": [0] * inputs, "scan_input_directions": turns}
        of_one = helper.make_node("Scan", [name for _, name in parts], found[-1], body=body, **stated)
        of_one.name = walk.node_label(node)
        made += [*(part for part, _ in parts), of_one]
    if states < 0 or not batch:
        raise Refused(f"it scans {inputs} of {len(tensors)} inputs, for a batch of {batch}; export the model again")
    at.then([*made, *(each for names, name in zip(zip(*found), node.output) for each in _stacked(at, names, 0, name))])


def _stacked(at: Flattening, tensors: Sequence[str], axis: int, name: str) -> list[onnx.NodeProto]:
    """Return nodes that stack tensors along a new axis."""
    if not name:
        return []
    if not tensors:
        raise Refused(f"it runs not once, and the shape of its result {name} is not known; leave it out")
    single = [at.unsqueezed(each, axis) for each in tensors]
    return [*(each for each, _ in single), at.node("Concat", [each for _, each in single], name, axis=axis)[0]]


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    return next(each for each in node.attribute if each.name == name)


def _ints(node: onnx.NodeProto, name: str, count: int) -> list[int]:
    found = next((list(each.ints) for each in node.attribute if each.name == name), [0] * count)
    if len(found) != count:
        raise Refused(f"its attribute {name} has {len(found)} numbers, and needs {count}; export the model again")
    return found


def identity(at: Flattening, node: onnx.NodeProto) -> None:
    """Give a sequence a second name; an Identity of a tensor stays a node."""
    if node.input[0] in at.sequences:
        at.sequences[node.output[0]] = at.sequences[node.input[0]]
    else:
        at.keep(node)


HANDLERS = {"Identity": identity, "If": if_, "Loop": loop, "Scan": scan, **SEQUENCES}
RESOLVED = frozenset(HANDLERS) - {"Identity"}
