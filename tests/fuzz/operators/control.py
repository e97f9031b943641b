# SPDX-License-Identifier: Apache-2.0
"""Branches and loops, in each other: what is around them they read, some of them only move numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx
from onnx import helper

from ..drawing import ANY, Drawing, NotDrawn
from .table import TABLE, draws

DEEP = 3  # graphs in each other
_CONDITIONS = 3  # inputs that decide: each way is run
_MOVES = ("reshape", "reshape", "transpose", "slice_", "concat", "squeeze", "unsqueeze", "tile", "identity", "flatten")


@draws(8)
def branches(g: Drawing):
    condition, count = _condition(g), g.pick([1, 1, 2, 3])
    moves = g.chance(0.4)
    with _inside(g) as first:
        _draw_some(g, moves)
        names = [_as_result(g, g.tensor(ANY)) for _ in range(count)]
        alike = [g.values[name] for name in names]
        then = _graph(g, first, names)
    with _inside(g) as second:
        _draw_some(g, moves)
        other = _graph(g, second, [_like(g, value) for value in alike])
    g.node("If", [condition], count, then_branch=then, else_branch=other)


@draws(2)
def loop(g: Drawing):
    states, count, scanned = _states(g), g.between(0, 4), g.between(0, 2)
    scanned = scanned if count else 0  # the shape of a result of no turns is not known
    at, goes_on, *held = [g._name("b") for _ in range(2 + len(states))]
    with _inside(g) as nodes:
        g.values |= {at: np.array(0), goes_on: np.array(True)} | {b: g.values[s] for b, s in zip(held, states)}
        _draw_some(g, False)
        stays = g.node("Identity", [goes_on])
        if g.chance(0.3):
            stays = g.node("Less", [at, g.constant(g.between(0, 4), "int64")])
        results = [stays, *(_like(g, g.values[name]) for name in states)]
        results += [_as_result(g, g.tensor(ANY, high=5)) for _ in range(scanned)]
        body = _graph(g, nodes, results, [at, goes_on, *held])
    trips = g.constant(count, "int64") if g.chance(0.7) else g.constant([count], "int64")
    given = "" if g.chance(0.4) else g.constant(True)
    g.node("Loop", [trips, given, *states], len(states) + scanned, body=body)


@draws(2)
def scan(g: Drawing):
    states, sources = _states(g, least=0), [g.tensor(ANY, 1, 5, where=lambda v: 0 < max(v.shape) <= 8)]
    scanned = g.between(0 if states else 1, 2)
    axes = [g.pick([i for i, size in enumerate(g.values[sources[0]].shape) if 0 < size <= 8] or [None])]
    if axes[0] is None:
        raise NotDrawn
    length = g.values[sources[0]].shape[axes[0]]
    fit = [(n, a) for n, v in g.values.items() for a, size in enumerate(v.shape) if size == length and v.ndim < 6]
    for name, axis in [g.pick(fit)] if fit and g.chance(0.4) else []:
        sources.append(name)
        axes.append(axis)
    turns = [g.between(0, 1) for _ in sources]
    held, parts = [g._name("b") for _ in states], [g._name("b") for _ in sources]
    with _inside(g) as nodes:
        g.values |= {b: g.values[s] for b, s in zip(held, states)}
        g.values |= {p: np.take(g.values[s], -t, axis=a) for p, s, a, t in zip(parts, sources, axes, turns)}
        _draw_some(g, False)
        results = [_like(g, g.values[name]) for name in states]
        results += [_as_result(g, g.tensor(ANY, high=5)) for _ in range(scanned)]
        ranks = [g.values[name].ndim + 1 for name in results[len(states) :]]
        body = _graph(g, nodes, results, [*held, *parts])
    stated = {"scan_input_axes": axes, "scan_input_directions": turns}
    stated |= {
        "scan_output_axes": [g.axis(n) % n for n in ranks],
        "scan_output_directions": [g.between(0, 1) for _ in ranks],
    }
    stated = {name: numbers for name, numbers in stated.items() if numbers and not (g.chance(0.3) and not any(numbers))}
    g.node("Scan", [*states, *sources], len(results), body=body, num_scan_inputs=len(sources), **stated)


def _condition(g: Drawing) -> str:
    """A tensor of one truth value: mostly an input, or what is made of one."""
    single = [name for name, value in g.inputs.items() if value.dtype == bool and value.size == 1]
    if len(single) < _CONDITIONS and (not single or g.chance(0.5)):
        name = g._name("x")
        g.inputs[name] = g.values[name] = np.full(g.pick([(), (), (1,)]), g.chance(0.5))
    else:
        name = g.pick(single)
    if g.chance(0.2):
        return g.node("Not", [name])
    if g.chance(0.1):
        numbers = g.tensor(("float32",), below=100)
        total = g.node("ReduceMax", [numbers], keepdims=0) if g.values[numbers].size else name
        return g.node("Greater", [total, g.constant(g.pick([-1.0, 0.5, 3.0]), "float32")]) if total != name else name
    return name


def _states(g: Drawing, least: int = 1) -> list[str]:
    return [g.tensor(ANY, where=lambda v: v.size <= 500) for _ in range(g.between(least, 2))]


@contextmanager
def _inside(g: Drawing) -> Iterator[list[onnx.NodeProto]]:
    """Nodes are drawn into a graph of their own, which sees what is around it; inputs and initializers stay."""
    around = g.nodes, g.values, g.constants
    if g.depth == DEEP:
        raise NotDrawn
    g.nodes, g.values, g.constants, g.depth = [], dict(g.values), dict(g.constants), g.depth + 1
    try:
        yield g.nodes
    finally:
        made = {name for node in g.nodes for name in node.output}
        stated = {name: value for name, value in g.constants.items() if name not in made}
        g.nodes, g.values, g.constants = around
        g.depth -= 1
        g.values |= {name: value for name, value in {**stated, **g.inputs}.items() if name not in g.values}
        g.constants |= stated


def _draw_some(g: Drawing, moves: bool) -> None:
    """A few nodes, of any operators or of those that only move numbers."""
    names = _MOVES if moves else list(TABLE)
    likely = np.array([1.0 if moves else TABLE[name][1] for name in names])
    for _ in range(g.between(0, 4)):
        _try(g, TABLE[names[int(g.rng.choice(len(names), p=likely / likely.sum()))]][0])


def _try(g: Drawing, draw: Callable) -> None:
    try:
        draw(g)
    except NotDrawn:
        return


def _as_result(g: Drawing, name: str) -> str:
    """The result of a node of this graph: of what is around it a copy."""
    inside = {each for node in g.nodes if node.op_type != "Constant" for each in node.output}
    return name if name in inside and g.chance(0.8) else g.node("Identity", [name])


def _like(g: Drawing, value: np.ndarray) -> str:
    """A tensor of a type and a shape, made of another one by moving its numbers."""
    found = g.tensor((str(value.dtype),), where=lambda v: v.size > 0 or not value.size)
    size = g.values[found].size
    if g.values[found].shape == value.shape and g.chance(0.6):
        return _as_result(g, found)
    flat = g.node("Reshape", [found, g.constant([-1] if size else [0], "int64")])
    if size < value.size:
        copies = -(-value.size // size)
        tiled = copies > 4 or g.chance(0.3)
        others = {"inputs": [flat, g.constant([copies], "int64")]} if tiled else {"inputs": [flat] * copies, "axis": 0}
        flat = g.node("Tile" if tiled else "Concat", large=True, **others)
    if g.values[flat].size != value.size:
        flat = g.node("Slice", [flat, g.constant([0], "int64"), g.constant([value.size], "int64")])
    allow = {"allowzero": 1} if g.opset >= 14 and not value.size else {}
    return g.node("Reshape", [flat, g.constant(list(value.shape), "int64")], **allow)


def _graph(g: Drawing, nodes: list, results: list[str], inputs: list[str] = ()) -> onnx.GraphProto:
    stated = g.chance(0.5)

    def info(name: str) -> onnx.ValueInfoProto:
        value = g.values[name]
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(name, kind, value.shape if stated else None)

    for number, name in enumerate(results):
        if name in results[:number]:
            results[number] = g.node("Identity", [name])
    return helper.make_graph(nodes, g._name("g"), [info(name) for name in inputs], [info(name) for name in results])
