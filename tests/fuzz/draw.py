# SPDX-License-Identifier: Apache-2.0
"""A seed -> a case."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .case import SWITCHES, Case
from .drawing import Drawing, NotDrawn
from .operators import TABLE
from .single import draw_single

SMALL, FULL = 2_000, 20_000  # the most elements of a tensor
_LAID_OUT = 0.2  # of the graphs have their layouts planned
GRAPHS, WINDOWS = "graphs", "windows"
KINDS = (GRAPHS, WINDOWS)
"""What is drawn: graphs of many operators, or single operators on windows with every attribute free."""


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
    graph = Drawing(rng, opset=int(rng.integers(13, 23)), limit=limit)
    refused = _graph(graph, limit) if kind == GRAPHS else draw_single(graph) or {}
    model = graph.model(_outputs(graph))
    inputs = {value.name: graph.inputs[value.name] for value in model.graph.input}
    options = _options(rng)
    # By numbers of its own, so that seeds go on meaning the graphs that they meant before.
    if "layout" not in options and np.random.default_rng([seed, 1]).random() < _LAID_OUT:
        options["layout"] = "fluid"
    return Case(model, inputs, options, dict(refused))


def _graph(graph: Drawing, limit: int) -> Counter[str]:
    """Draw operators until there are enough; how many of each were refused meanwhile."""
    rng = graph.rng
    wanted = 3 + min(57 if limit >= FULL else 12, int(rng.exponential(8.0 if limit >= FULL else 4.0)))
    refused: Counter[str] = Counter()
    # Each graph has its own preferences: a few operators often, others not at all (swarm testing: Groce, 2012).
    names = list(TABLE)
    likely = np.array([TABLE[name][1] for name in names]) * rng.lognormal(0.0, 1.0, len(names))
    for _ in range(20 * wanted):
        name = names[int(rng.choice(len(names), p=likely / likely.sum()))]
        try:
            TABLE[name][0](graph)
        except NotDrawn:
            refused[name] += 1
        if _operators(graph) >= wanted:
            break
    return refused


def _operators(graph: Drawing) -> int:
    return sum(node.op_type != "Constant" for node in graph.nodes)


def _outputs(graph: Drawing) -> list[str]:
    """All results that nobody reads, or most of them, and some that others read too."""
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
