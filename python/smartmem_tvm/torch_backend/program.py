# SPDX-License-Identifier: Apache-2.0
"""Convert a graph of ``torch.compile`` to a program of ``torch.export``; weights inside or inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._guards import tracing
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    import tvm


class TensorType(NamedTuple):
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Place:
    """A size of a tensor: the position of the tensor among the graph's inputs, and the dimension."""

    tensor: int
    axis: int


@dataclass(frozen=True)
class Program:
    """A graph with fixed sizes.

    Attributes
    ----------
    exported : torch.export.ExportedProgram
        Takes the tensors at `inputs`, and returns the graph's results that are tensors.
    inputs : tuple of int
        Positions among the graph's inputs; the others are sizes and weights, and are constants of the program.
    results : tuple
        For each result of the graph, its number with these sizes, or None for the next tensor.
    """

    exported: torch.export.ExportedProgram
    inputs: tuple[int, ...]
    results: tuple

    @property
    def takes(self) -> list[TensorType]:
        """Return the types of the tensors at `inputs`."""
        return [type_of(each) for each in taken(self.exported)]

    @property
    def returns(self) -> list[TensorType]:
        """Return the types of the results that are tensors."""
        return [type_of(each) for each in returned(self.exported)]

    def module(self) -> tvm.IRModule:
        """Return the program as a Relax module, with the errors of `smartmem_tvm.from_torch`."""
        from ..frontend import from_torch

        return from_torch(self.exported)


class Captured(torch.nn.Module):
    """The graph with some inputs fixed: takes tensors and returns tensors.

    Parameters
    ----------
    sizes : mapping
        Position of an input that is a number -> the number, or the `Place` where it is read.
    remember : callable
        Called with all results of the graph.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        inputs: Sequence[Any],
        frozen: Collection[int],
        sizes: dict[int, Any],
        remember: Callable,
    ):
        super().__init__()
        self.captured = graph  # not `graph`: a program has an attribute of that name
        self.places = tuple(at for at, each in enumerate(inputs) if isinstance(each, torch.Tensor) and at not in frozen)
        self.sizes, self.count, self.frozen = sizes, len(inputs), tuple(frozen)
        self.remember = remember
        for at in frozen:
            self.register_buffer(f"weight_{at}", inputs[at].detach())

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results that are tensors."""
        given: dict[int, Any] = dict(zip(self.places, tensors, strict=True))
        given |= {at: getattr(self, f"weight_{at}") for at in self.frozen}
        for at, size in self.sizes.items():
            given[at] = given[size.tensor].shape[size.axis] if isinstance(size, Place) else size
        results = self.captured(*(given[at] for at in range(self.count)))
        self.remember(results)  # not as an attribute: the exporter restores those
        return tuple(each for each in results if isinstance(each, torch.Tensor))


def read_program(graph: torch.fx.GraphModule, inputs: Sequence[Any], frozen: Collection[int]) -> Program:
    """Export a graph of torch.

    Parameters
    ----------
    inputs : sequence
        Tensors and numbers of a call.
    frozen : collection of int
        Positions of the inputs that become constants of the program.
    """
    traced: list[Sequence] = []
    numbers = {at: each for at, each in enumerate(inputs) if not isinstance(each, torch.Tensor)}
    fixed = Captured(graph, inputs, frozen, numbers, traced.append).eval()
    with outside_of_torch_compile():
        exported = torch.export.export(fixed, tuple(inputs[at] for at in fixed.places), strict=False)
    results = tuple(None if isinstance(each, torch.Tensor) else each for each in traced[-1])
    return Program(exported, fixed.places, results)


def shapes_of(graph: torch.fx.GraphModule) -> list[Any]:
    """Return what torch knows of each input without its data: a tensor, or a number, which may be symbolic."""
    nodes = (node for node in graph.graph.nodes if node.op == "placeholder")
    return [node.meta.get("example_value", node.meta.get("val")) for node in nodes]


def expression_of(size: Any) -> Any:
    """Return a size, which may be symbolic, as an expression."""
    import sympy

    return size.node.expr if hasattr(size, "node") else sympy.Integer(size)


def taken(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    """Return the inputs of a program as tensors without data."""
    names = set(program.graph_signature.user_inputs)
    return [node.meta["val"] for node in program.graph.nodes if node.name in names]


def returned(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    """Return the results of a program as tensors without data."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    return [node.meta["val"] for node in output.args[0] if isinstance(node, torch.fx.Node)]


def type_of(tensor: torch.Tensor, size: Callable[[Any], int] = int) -> TensorType:
    """Return the shape and the type of a tensor; `size` makes a number of each dimension."""
    return TensorType(tuple(map(size, tensor.shape)), str(tensor.dtype).removeprefix("torch."))


def outside_of_torch_compile() -> ExitStack:
    """Leave the caller's state of torch: an active compilation, modes, and inference mode, which keeps no versions."""
    stack = ExitStack()
    for context in (_disable_current_modes(), tracing(None), torch.inference_mode(False), torch.no_grad()):
        stack.enter_context(context)
    return stack
