# SPDX-License-Identifier: Apache-2.0
"""Remember the refusals of this process, so that the same graph is not exported and refused again."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from threading import Lock
from typing import Any

import torch
from torch.fx.node import map_aggregate

from .refusals import Refusal
from .request import Request

MOST = 4096  # refusals kept, of some hundred bytes each

_refused: dict[str, Refusal] = {}
_lock = Lock()


def recall(signature: str) -> Refusal | None:
    """Return the earlier refusal of a graph, None if there is none."""
    return _refused.get(signature)


def remember(signature: str, refusal: Refusal) -> None:
    """Keep a refusal; drop the oldest if there are too many."""
    with _lock:
        if len(_refused) >= MOST:
            del _refused[next(iter(_refused))]
        _refused[signature] = refusal.with_traceback(None)


def forget() -> None:
    """Forget all refusals, so that each graph is tried again."""
    with _lock:
        _refused.clear()


def signature_of(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], weights: Collection[int], functional: bool, request: Request
) -> str:
    """Return a hash of the facts that decide on a refusal: operators, sizes, types, options; not names or values."""
    stated = [_of_value(each) for each in inputs], sorted(weights), functional, str(request)
    return hashlib.sha256(repr((_of_graph(graph), *stated)).encode()).hexdigest()


def _of_graph(graph: torch.fx.GraphModule) -> list:
    numbers = {node: _Number(at) for at, node in enumerate(graph.graph.nodes)}

    def of(node: torch.fx.Node) -> tuple:
        target: Any = str(node.target)
        if node.op in ("placeholder", "output"):
            target = ""
        elif node.op in ("get_attr", "call_module"):
            target = _of_value(_attribute(graph, node.target))
        args, options = map_aggregate(
            (node.args, node.kwargs), lambda each: numbers.get(each, each) if _is_node(each) else each
        )
        return node.op, target, args, options

    return [of(node) for node in graph.graph.nodes]


class _Number(int):
    """A node as its position in the graph; its text differs from that of an integer."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def _is_node(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


def _attribute(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name)
    return owner


def _of_value(value: Any) -> Any:
    if isinstance(value, torch.fx.GraphModule):
        return _of_graph(value)
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), str(value.dtype), str(value.device)
    return type(value).__name__ if isinstance(value, torch.nn.Module) else value
