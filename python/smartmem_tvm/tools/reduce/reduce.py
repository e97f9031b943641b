# SPDX-License-Identifier: Apache-2.0
"""The smallest part of a model that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx

from . import case as case_module
from .branches import Path, inner_part, nested_graph, opened, paths
from .case import Case, Evaluate
from .cuts import bypasses, part, reaching
from .numbers import numbers, simpler, sizes, smaller
from .search import smallest

Fails = Callable[[onnx.ModelProto, Mapping[str, np.ndarray]], bool]
"""Whether a model fails on these arrays in the way that is looked for."""


def reduce_model(
    model: onnx.ModelProto,
    arrays: Mapping[str, np.ndarray],
    fails: Fails,
    evaluate: Evaluate = case_module.evaluate,
    tell: Callable[[int, int], None] = lambda nodes, trials: None,
) -> Case:
    """Cut a model that fails down to one that still does, in which no node can be left out.

    Nodes are left out in runs, which cuts the graph at its outputs, at its inputs and in its middle; then outputs; then
    nodes whose operand can take the place of their result. A node that holds graphs gives way to one of them, and in
    graphs that stay nodes are left out as well. At last sizes are made smaller and numbers simpler.

    Parameters
    ----------
    model : onnx.ModelProto
        With all weights inside, and a number for each dimension of its inputs. It is not changed.
    arrays : mapping
        Input name -> array.
    fails : callable
        It is true of `model` and `arrays`, which are not asked about. It is asked about models that are broken too, in
        which sizes do not fit each other, and must then say no.
    evaluate : callable
        Values of tensors inside of the model, for the inputs of its parts.
    tell : callable
        Is told the number of nodes, and how often `fails` was asked, whenever a smaller case was found.

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
        """The first of the candidates that fails, or `case`."""
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
