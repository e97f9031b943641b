# SPDX-License-Identifier: Apache-2.0
"""Reasons to leave a graph to torch: each function returns the reason or None, or raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..frontend.torch_inference import draws, moves_statistics
from .program import outside_of_torch_compile, returned


class Refusal(Exception):
    """A graph is left to torch; the message is the reason."""


class NotFunctional(Refusal):
    """The graph writes into its inputs, or its results share memory: torch can functionalize it."""


def training(graph: torch.fx.GraphModule) -> str | None:
    """Return a refusal if torch may need gradients."""
    if any(each.requires_grad for each in _example_results(graph)):
        return (
            "its results need gradients, and kernels here have none: call the model in torch.inference_mode(), or "
            "torch.no_grad()"
        )
    return None


def strange_tensors(inputs: Sequence[Any]) -> str | None:
    """Return a refusal if inputs are anything other than numbers and plain tensors of one device."""
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    if not tensors:
        return "it takes no tensors"
    devices = sorted({str(each.device) for each in tensors})
    if len(devices) > 1:
        return f"its inputs are on several devices ({', '.join(devices)})"
    for each in tensors:
        if type(each) not in (torch.Tensor, torch.nn.Parameter) or each.layout != torch.strided:
            return f"an input is a {type(each).__name__} in layout {each.layout}, and kernels take plain tensors"
        if each.is_complex() or each.is_quantized:
            return f"an input has dtype {each.dtype}, which kernels here do not take"
    return None


def check_program(program: torch.export.ExportedProgram) -> None:
    """Refuse programs that kernels would compute wrongly or not at all.

    Raises
    ------
    NotFunctional
        If the program writes into its inputs, or results share memory with them or with each other.
    Refusal
        If it draws random numbers, moves the statistics of a norm, or returns no tensor.
    """
    for node in program.graph.nodes:
        if draws(node):
            raise Refusal(f"{node.target} draws random numbers")
        if moves_statistics(node):
            raise Refusal(f"{node.target} is in training mode, and torch's exporter computes it as in inference")
    if _may_write(program):
        with outside_of_torch_compile():
            signature = program.run_decompositions({}).graph_signature
        written = [spec for spec in signature.output_specs if spec.kind.name != "USER_OUTPUT"]
        if written:
            raise NotFunctional(f"it writes into {len(written)} of its inputs")
    results = returned(program)
    if not results:
        raise Refusal("it returns no tensor")
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    taken = [each for each in values if isinstance(each, torch.Tensor)]
    if any(storage(each) == storage(other) for each in results for other in taken):
        raise NotFunctional("a result shares memory with an input")
    if any(_overlap(each, other) for at, each in enumerate(results) for other in results[:at]):
        raise NotFunctional("two results share memory")


def _may_write(program: torch.export.ExportedProgram) -> bool:
    """Whether an operator writes into a tensor, or may hide one that does: to find out what is written takes longer."""
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    schemas = [each._schema for each in called if isinstance(each, torch._ops.OpOverload)]
    plain = len(schemas) == sum(not _is_python(each) for each in called)
    return not plain or any(each.is_mutable for each in schemas)


def _is_python(function: Any) -> bool:
    """Whether a function is Python's own, on numbers or tuples."""
    return getattr(function, "__module__", None) in ("_operator", "math", "builtins")


def _example_results(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Return the results that torch computed without data while it captured a graph."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    values = [node.meta.get("example_value") for node in output.args[0] if isinstance(node, torch.fx.Node)]
    return [each for each in values if isinstance(each, torch.Tensor)]


def storage(tensor: torch.Tensor) -> int:
    """Return a number that tensors have in common if they share memory."""
    return tensor.untyped_storage()._cdata


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share an element: the parts of a split tensor share a storage, but no element."""
    if storage(one) != storage(other) or one.dtype != other.dtype:
        return storage(one) == storage(other)
    marks = torch.zeros(one.untyped_storage().nbytes() // one.itemsize, dtype=torch.bool)
    _part(marks, one).fill_(True)
    return bool(_part(marks, other).any())


def _part(numbers: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    return numbers.as_strided(view.shape, view.stride(), view.storage_offset())
