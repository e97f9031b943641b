# SPDX-License-Identifier: Apache-2.0
"""Search the smallest part of a model that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx

from . import case as case_module
from .branches import Path, inner_part, nested_graph, opened, paths
from .case import Case, Evaluate
from .cuts import bypasses, part, reaching
from .delta_debugging import smallest
from .numbers import numbers, simpler, sizes, smaller

Fails = Callable[[onnx.ModelProto, Mapping[str, np.ndarray]], bool]
"""Returns whether a model fails on these arrays in the expected way."""


def reduce_model(
    model: onnx.ModelProto,
    arrays: Mapping[str, np.ndarray],
    fails: Fails,
    evaluate: Evaluate = case_module.evaluate,
    tell: Callable[[int, int], None] = lambda nodes, trials: None,
) -> Case:
    """Cut a failing model down to one that still fails and in which no node can be removed.

    First runs of nodes are removed, which cuts the graph at its outputs, at its inputs and in its middle; then outputs;
    then nodes whose operand can replace their result. A node with nested graphs is replaced by one of them, and nodes
    are removed in the remaining graphs, too. At last sizes are reduced and numbers simplified.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with all weights inside, and a number for each dimension of its inputs. It stays unchanged.
    arrays : mapping
        Input name -> array.
    fails : callable
        True for `model` and `arrays`, for which it is not called. It is also called for invalid models, whose sizes do
        not fit each other, and must then return False.
    evaluate : callable
        Computes the values of tensors inside of the model, for the inputs of its parts.
    tell : callable
        Called with the number of nodes, and the number of calls of `fails`, for each smaller case.

    Returns
    -------
    Case
        A model with its input.
    """
    return _Reduction(fails, evaluate, tell).reduced(Case(model, dict(arrays)))


class _Reduction:
    def __init__(self, fails: Fails, evaluate: Evaluate, tell: Callable[[int, int], None]):
        self._fails, self._evaluate, self._tell = fails, evaluate, tell
        self._seen: dict[bytes, bool] = {}

    def reduced(self, case: Case) -> Case:
        case = self._as_often_as_it_helps(case, self._fewer_nodes, self._fewer_outputs, self._bypassed, self._opened)
        case = self._as_often_as_it_helps(case, self._fewer_inside, self._fewer_nodes)
        case = self._as_often_as_it_helps(case, self._smaller)
        return self._simpler(case)

    @staticmethod
    def _as_often_as_it_helps(case: Case, *steps: Callable[[Case], Case]) -> Case:
        before = None
        while case is not before:
            before = case
            for step in steps:
                case = step(case)
        return case

    def _holds(self, case: Case | None) -> bool:
        if case is None:
            return False
        key = case.digest
        if key not in self._seen:
            self._seen[key] = bool(self._fails(case.model, case.arrays))
            if self._seen[key]:
                self._tell(len(case.model.graph.node), len(self._seen))
        return self._seen[key]

    def _first(self, case: Case, candidates: Iterable[Case]) -> Case:
        """Return the first candidate that fails, or `case`."""
        return next(filter(self._holds, candidates), case)

    def _fewer_nodes(self, case: Case) -> Case:
        everything = range(len(case.model.graph.node))
        kept = smallest(everything, lambda some: self._holds(part(case, some, self._evaluate)))
        return part(case, kept, self._evaluate) if len(kept) < len(everything) else case

    def _fewer_outputs(self, case: Case) -> Case:
        graph = case.model.graph
        names = [each.name for each in graph.output]

        def only(some: list[str]) -> Case | None:
            return part(case, reaching(graph, some), self._evaluate, some)

        kept = smallest(names, lambda some: self._holds(only(some)))
        return only(kept) if len(kept) < len(names) else case

    def _bypassed(self, case: Case) -> Case:
        for number in reversed(range(len(case.model.graph.node))):
            case = self._first(case, bypasses(case, number, self._evaluate))
        return case

    def _opened(self, case: Case) -> Case:
        for number in reversed(range(len(case.model.graph.node))):
            case = self._first(case, opened(case, number, self._evaluate))
        return case

    def _fewer_inside(self, case: Case) -> Case:
        for path in list(paths(case.model.graph)):
            case = self._fewer_in(case, path)
        return case

    def _fewer_in(self, case: Case, path: Path) -> Case:
        everything = range(len(nested_graph(case.model.graph, path).node))

        def only(some: Sequence[int]) -> Case | None:
            return inner_part(case, path, some, self._evaluate)

        kept = smallest(everything, lambda some: self._holds(only(some)))
        return only(kept) if len(kept) < len(everything) else case

    def _smaller(self, case: Case) -> Case:
        for size in sizes(case):
            case = self._first(case, smaller(case, size, self._evaluate))
        return case

    def _simpler(self, case: Case) -> Case:
        names = numbers(case)
        simple = self._first(case, simpler(case, names)) if names else case
        if simple is not case:
            return simple
        for name in names:
            case = self._first(case, simpler(case, [name]))
        return case
