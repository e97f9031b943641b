# SPDX-License-Identifier: Apache-2.0
"""Numbers of the code that ``dynamic=True`` makes inputs: tensors of no dimension, which the graph reads by ``item()``.

A graph gets them as numbers, as sizes are, so that kernels hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def wrapped_numbers(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """Return the positions of the inputs that are such tensors."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return [at for at, (node, each) in enumerate(zip(nodes, inputs, strict=True)) if _is_wrapped(node, each)]


def as_numbers(inputs: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Return inputs with numbers at some places."""
    return [float(each) if at in places else each for at, each in enumerate(inputs)]


def with_numbers(graph: torch.fx.GraphModule, inputs: Sequence[Any], places: Sequence[int]) -> torch.fx.GraphModule:
    """Return a graph that takes numbers at some places; it shares the tensors that `graph` holds."""
    copied, values = torch.fx.Graph(), {}
    result = copied.graph_copy(graph.graph, values)
    copied.output(result)
    for at, node in enumerate([each for each in copied.nodes if each.op == "placeholder"]):
        if at in places:
            for read in list(node.users):
                read.replace_all_uses_with(node)
                copied.erase_node(read)
            node.meta = {"example_value": float(inputs[at])}
    return torch.fx.GraphModule(graph, copied)


def _is_wrapped(node: torch.fx.Node, given: Any) -> bool:
    if not isinstance(given, torch.Tensor) or given.dim() or given.dtype != torch.float64 or given.device.type != "cpu":
        return False
    return all(user.op == "call_method" and user.target == "item" for user in node.users)
