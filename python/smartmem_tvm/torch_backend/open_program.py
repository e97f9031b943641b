# SPDX-License-Identifier: Apache-2.0
"""A graph of ``torch.compile`` with symbolic sizes: torch traces it once, and each size is bound to what it made.

Tracing and torch's exporter take longer than compiling the kernels of a size.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim

from .program import (
    Captured,
    Place,
    TensorType,
    expression_of,
    outside_of_torch_compile,
    returned,
    shapes_of,
    taken,
    type_of,
)
from .refusals import check_program, storage

if TYPE_CHECKING:
    import sympy
    import tvm

    from ..frontend import Model

_logger = logging.getLogger(__package__)


class NotOpen(Exception):
    """A graph is exported for each size by itself; the message is the reason."""


@dataclass(frozen=True)
class SizedProgram:
    """A graph bound to sizes: as `program.Program`."""

    model: Model
    inputs: tuple[int, ...]
    results: tuple
    takes: list[TensorType]
    returns: list[TensorType]

    def module(self) -> tvm.IRModule:
        """Return the program as a Relax module, with the errors of `smartmem_tvm.from_onnx`."""
        from ..frontend import from_onnx

        return from_onnx(self.model)


@dataclass(frozen=True)
class OpenProgram:
    """A graph that torch has traced, and exported, with symbolic sizes.

    Attributes
    ----------
    exported : torch.export.ExportedProgram
        Takes the tensors at `inputs`, and returns the graph's results that are tensors.
    model : Model
        What torch's exporter made of it.
    inputs : tuple of int
        Positions among the graph's inputs.
    results : tuple
        For each result of the graph, its number, which may be symbolic, or None for the next tensor.
    places : dict
        Position of a number among the graph's inputs -> the `Place` where it is read.
    """

    exported: torch.export.ExportedProgram
    model: Model
    inputs: tuple[int, ...]
    results: tuple
    places: dict[int, Place] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[int, sympy.Symbol]:
        """The symbol of each number among the graph's inputs that stays open."""
        types = dict(zip(self.inputs, taken(self.exported), strict=True))
        found = {at: expression_of(types[each.tensor].shape[each.axis]) for at, each in self.places.items()}
        return {at: each for at, each in found.items() if each.is_Symbol}

    def at(self, inputs: Sequence[Any]) -> SizedProgram:
        """Return the program for the sizes of these inputs of the graph.

        Raises
        ------
        NotOpen
            If what torch traced does not hold for these sizes.
        UserError
            If it is outside of the program's bounds, or breaks its relations between sizes.
        """
        return self.bound(self.solved(inputs))

    def bound(self, sizes: Mapping[sympy.Symbol, int]) -> SizedProgram:
        """Return the program for some sizes; errors as of `at`."""
        from ..frontend import bound
        from ..frontend.several_sizes import bound_to_each

        refused = self._refused(sizes)
        if refused is not None:
            raise NotOpen(f"torch traced it where {refused}")

        def number(size: Any) -> int:
            return _number(size, sizes)

        takes = [type_of(each, number) for each in taken(self.exported)]
        names = [each.name for each in self.model.proto.graph.input]
        if len(names) != len(takes):
            raise NotOpen("torch's exporter drops an input")
        (model,) = bound_to_each(self.model, [{name: each.shape for name, each in zip(names, takes)}], bound)
        results = tuple(each if each is None else _as_number(each, sizes) for each in self.results)
        returns = [type_of(each, number) for each in returned(self.exported)]
        return SizedProgram(model, self.inputs, results, takes, returns)

    def holds(self, sizes: Mapping[sympy.Symbol, int]) -> bool:
        """Whether what torch assumed of sizes while it traced the graph holds for these."""
        return self._refused(sizes) is None

    def _refused(self, sizes: Mapping[sympy.Symbol, int]) -> Any:
        """Return what torch assumed and does not hold for some sizes; None if all of it does."""
        return next((each for each in self._guards if not _holds(each, sizes)), None)

    @cached_property
    def _guards(self) -> list:
        known = _environment(self.exported)
        # A symbol that torch has replaced, by a number too, is in no size of the program.
        return list(dict.fromkeys(known.replace(guard.expr) for guard in known.guards))

    def of_any_size(self) -> OpenProgram:
        """Return the same without what runs in torch, which takes the sizes that were traced only."""
        return replace(self, model=replace(self.model, program=None))

    def varies(self, result: Any) -> bool:
        """Whether a result is a number that is symbolic."""
        return isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool)

    def solved(self, inputs: Sequence[Any]) -> dict[sympy.Symbol, int]:
        """Return the numbers of the symbols in the program's sizes, for inputs of the graph.

        Raises
        ------
        NotOpen
            If the inputs have other relations between sizes.
        """
        tensors = [inputs[at] for at in self.inputs]
        pairs = [
            (expression_of(size), found)
            for stated, given in zip(taken(self.exported), tensors, strict=True)
            for size, found in zip(stated.shape, given.shape, strict=True)
        ]
        solved: dict = {}
        for size, found in pairs:
            if size.is_Symbol and solved.setdefault(size, found) != found:
                raise NotOpen("sizes are equal in what torch traced, and differ here")
        for size, found in pairs:
            if size.subs(solved) != found:
                raise NotOpen(f"a size is {size} in what torch traced, and {found} here")
        return solved


def open_program(graph: torch.fx.GraphModule, inputs: Sequence[Any], frozen: Collection[int]) -> OpenProgram:
    """Export a graph with the sizes that are symbolic in it left open.

    Parameters
    ----------
    inputs, frozen
        As of `program.read_program`; sizes that torch specializes to those of `inputs` do not stay open.

    Raises
    ------
    NotOpen
        If no size is symbolic, one is not read from a tensor, or results share memory.
    Exception
        Errors of torch's exporter, of many types.
    """
    from ..frontend.torch_onnx import model_of

    shapes = shapes_of(graph)
    sizes, dynamic = _sources(graph, shapes, inputs, frozen)
    traced: list[Sequence] = []
    captured = Captured(graph, inputs, frozen, sizes, traced.append).eval()
    open_axes = tuple(dict.fromkeys(dynamic.get(at, ()), Dim.AUTO) for at in captured.places)
    with outside_of_torch_compile():
        examples = tuple(inputs[at] for at in captured.places)
        exported = torch.export.export(captured, examples, dynamic_shapes={"tensors": open_axes}, strict=False)
        if len({storage(each) for each in returned(exported)}) < len(returned(exported)):
            raise NotOpen("results share memory")
        check_program(exported)
        model = model_of(exported, "The torch program")
    results = tuple(None if isinstance(each, torch.Tensor) else each for each in traced[-1])
    places = {at: each for at, each in sizes.items() if isinstance(each, Place)}
    return OpenProgram(exported, model, captured.places, results, places)


def _sources(
    graph: torch.fx.GraphModule, known: Sequence[Any], inputs: Sequence[Any], frozen: Collection[int]
) -> tuple[dict[int, Any], dict[int, list[int]]]:
    """Return where each number among the inputs is read, and the symbolic dimensions of each tensor."""
    places: dict = {}
    dynamic: dict[int, list[int]] = {}
    for at, each in enumerate(known):
        if isinstance(each, torch.Tensor) and at not in frozen:
            for axis, size in enumerate(each.shape):
                if isinstance(size, torch.SymInt) and not expression_of(size).is_number:
                    places.setdefault(expression_of(size), Place(at, axis))
                    dynamic.setdefault(at, []).append(axis)
    if not dynamic:
        raise NotOpen("no size of its inputs is symbolic")
    sizes: dict[int, Any] = {}
    for at, each in enumerate(inputs):
        if isinstance(each, torch.Tensor):
            continue
        symbolic = isinstance(known[at], torch.SymInt | torch.SymFloat | torch.SymBool)
        if symbolic and expression_of(known[at]) not in places:
            raise NotOpen("a number among its inputs is no size of a tensor")
        sizes[at] = places[expression_of(known[at])] if symbolic else each
    return sizes, dynamic


def _environment(program: torch.export.ExportedProgram) -> Any:
    """Return the symbols of a program, and what torch has assumed of them while it traced."""
    return next(each.fake_mode.shape_env for each in taken(program))


def _holds(condition: Any, sizes: Mapping) -> bool:
    return bool(condition.subs(sizes) == True)  # noqa: E712  (sympy's true)


def _number(size: Any, sizes: Mapping) -> int:
    found = expression_of(size).subs(sizes)
    if not found.is_number:
        raise NotOpen(f"the size {found} is not known from its inputs")
    return int(found)


def _as_number(value: Any, sizes: Mapping) -> Any:
    """Return a result that is a number as it is with these sizes."""
    if isinstance(value, torch.SymInt):
        return _number(value, sizes)
    if isinstance(value, torch.SymFloat | torch.SymBool):
        raise NotOpen("a result is a symbolic number that is no integer")
    return value
