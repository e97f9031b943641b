# SPDX-License-Identifier: Apache-2.0
"""Convert a graph of ``torch.compile`` to a program of ``torch.export`` with fixed sizes; weights inside or inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import tracing
from torch.utils._python_dispatch import _disable_current_modes


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


class _Fixed(torch.nn.Module):
    """The graph with some inputs fixed: takes tensors and returns tensors."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], frozen: Collection[int], remember: Callable):
        super().__init__()
        self.captured = graph  # not `graph`: a program has an attribute of that name
        self.places = tuple(at for at, each in enumerate(inputs) if isinstance(each, torch.Tensor) and at not in frozen)
        self.rest = {at: each for at, each in enumerate(inputs) if not isinstance(each, torch.Tensor)}
        self.count, self.frozen = len(inputs), tuple(frozen)
        self.remember = remember
        for at in frozen:
            self.register_buffer(f"weight_{at}", inputs[at].detach())

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results that are tensors."""
        given = {**self.rest, **dict(zip(self.places, tensors, strict=True))}
        given |= {at: getattr(self, f"weight_{at}") for at in self.frozen}
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
    fixed = _Fixed(graph, inputs, frozen, traced.append).eval()
    with outside_of_torch_compile():
        exported = torch.export.export(fixed, tuple(inputs[at] for at in fixed.places), strict=False)
    results = tuple(None if isinstance(each, torch.Tensor) else each for each in traced[-1])
    return Program(exported, fixed.places, results)


def outside_of_torch_compile() -> ExitStack:
    """Leave the caller's state of torch: an active compilation, modes, and inference mode, which keeps no versions."""
    stack = ExitStack()
    for context in (_disable_current_modes(), tracing(None), torch.inference_mode(False), torch.no_grad()):
        stack.enter_context(context)
    return stack
