# SPDX-License-Identifier: Apache-2.0
"""A seed -> a case."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .case import SWITCHES, Case
from .chains import draw_chain
from .drawing import Drawing, NotDrawn
from .operators import TABLE
from .operators.layers import LAYERS
from .single import draw_single

SMALL, FULL = 2_000, 20_000  # the most elements of a tensor
_LAID_OUT = 0.2  # of the graphs have their layouts planned
GRAPHS, WINDOWS, UNITS, CHAINS = "graphs", "windows", "units", "chains"
KINDS = (GRAPHS, WINDOWS, UNITS, CHAINS)
"""What is drawn: graphs of many operators; single operators on windows with every attribute free; graphs of few
operators and layers, most of whose dimensions are 1; recurrences of 2 to 40 steps that are written out."""
_UNITS = 0.6  # of the dimensions of the last kind are 1, besides those that any graph has


def draw(seed: int, limit: int = FULL, kind: str = GRAPHS) -> Case:
    """The case of a seed, the same with each call.

    Parameters
    ----------
    limit : int
        The most elements of a tensor; with less than `FULL`, graphs have fewer nodes too.
    kind : str
        One of `KINDS`.
    """
    rng = np.random.default_rng(seed)
    opset = int(rng.integers(13, 23))
    if kind == UNITS and rng.random() < 0.4:
        opset = 23  # the first with Attention
    graph = Drawing(rng, opset, limit, _UNITS if kind == UNITS else 0.0)
    refused: Counter[str] = Counter()
    results: list[str] = []
    if kind == WINDOWS:
        draw_single(graph)
    elif kind == CHAINS:
        results = draw_chain(graph)
    elif kind == UNITS:
        refused = _graph(graph, TABLE | LAYERS, graph.between(1, 4))
    else:
        refused = _graph(graph, TABLE, _wanted(rng, limit))
    model = graph.model(results or _outputs(graph))
    inputs = {value.name: graph.inputs[value.name] for value in model.graph.input}
    options = _options(rng)
    # By numbers of its own, so that seeds go on meaning the graphs that they meant before.
    if "layout" not in options and np.random.default_rng([seed, 1]).random() < _LAID_OUT:
        options["layout"] = "fluid"
    return Case(model, inputs, options, dict(refused))


def _wanted(rng: np.random.Generator, limit: int) -> int:
    return 3 + min(57 if limit >= FULL else 12, int(rng.exponential(8.0 if limit >= FULL else 4.0)))


def _graph(graph: Drawing, table: dict, wanted: int) -> Counter[str]:
    """Draw operators until there are enough; how many of each were refused meanwhile."""
    rng = graph.rng
    refused: Counter[str] = Counter()
    # Each graph has its own preferences: a few operators often, others not at all (swarm testing: Groce, 2012).
    names = list(table)
    likely = np.array([table[name][1] for name in names]) * rng.lognormal(0.0, 1.0, len(names))
    for _ in range(20 * wanted):
        name = names[int(rng.choice(len(names), p=likely / likely.sum()))]
        try:
            table[name][0](graph)
        except NotDrawn:
            refused[name] += 1
        if _operators(graph) >= wanted:
            break
    return refused


def _operators(graph: Drawing) -> int:
    return sum(node.op_type != "Constant" for node in graph.nodes)


def _outputs(graph: Drawing) -> list[str]:
    """All results without readers, or most of them, and some that others read too."""
    made = [name for node in graph.nodes if node.op_type != "Constant" for name in node.output]
    ends = [name for name in made if not graph.readers[name]]
    if len(ends) > 1 and graph.chance(0.2):
        ends = ends[1:]
    inside = [name for name in made if graph.readers[name]]
    ends += [graph.pick(inside) for _ in range(graph.pick([0, 0, 1, 2])) if inside]
    return [name for name in made if name in ends]


def _options(rng: np.random.Generator) -> dict[str, bool | str]:
    """Everything on, half of the time; else one technique off, or two."""
    off = int(rng.choice([0, 1, 2], p=[0.5, 0.3, 0.2]))
    return {str(name): False for name in sorted(rng.choice(SWITCHES, off, replace=False))}
