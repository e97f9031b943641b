# SPDX-License-Identifier: Apache-2.0
"""Describe graphs of torch: equal descriptions mean equal programs, in this process or in any other one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
import tvm
from torch.fx.node import _get_qualified_name, map_aggregate

from .._version import TVM_PINS, __version__, installed_version
from ..options import Options
from .program import expression_of
from .request import Request

_STABLE = ("torch", "_operator", "operator", "math")  # packages whose functions torch's version identifies
_OPERATORS = ("aten", "prims", "prim", "higher_order")  # namespaces of torch's own operators
_PLAIN = (type(None), bool, int, float, complex, str, range, type(...))
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# An object here is no value that another process could compare; the others write files, or measure.
_OF_THIS_PROCESS = ("records", "profiles", "measure", "dump_dir", "check", "memory_budget")


class NotStable(Exception):
    """A graph, or an option, means something in this process only; the message says what."""


def signature_of(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], weights: Collection[int], functional: bool, request: Request
) -> str:
    """Return a hash of what decides whether a graph is refused: operators, sizes, types, options; not names or values.

    It holds in this process only.
    """
    described = _Description(_facts, stable=False).of_graph(graph)
    return _hashed((described, [_fact_of(each) for each in inputs], sorted(weights), functional, str(request)))


def key_of(graph: torch.fx.GraphModule, weights: Collection[int], functional: bool, made_for: tuple[str, str]) -> str:
    """Return a hash of all that decides what code a graph becomes, but for its inputs; it holds in every process.

    Parameters
    ----------
    weights : collection of int
        Positions of the inputs that are compiled in.
    made_for : pair of str
        The target, and the options as `options_text` writes them.

    Raises
    ------
    NotStable
        If the graph calls functions that are not torch's own, or holds objects.
    """
    described = _Description(_content, stable=True).of_graph(graph)
    return _hashed((described, sorted(weights), functional, made_for, _state(), _versions()))


def with_inputs(key: str, inputs: Sequence[Any], contents: dict[int, str]) -> str:
    """Return a key of a graph together with the sizes and types of its inputs, and the contents of its weights."""
    return _hashed((key, [(_fact_of(each), contents.get(at, "")) for at, each in enumerate(inputs)]))


def length_of(known: Sequence[Any], inputs: Sequence[Any], number: int) -> str | None:
    """Return the sizes and types of inputs as text with a length in place of the sizes that one number decides.

    Parameters
    ----------
    known : sequence
        As of `program.shapes_of`.
    number : int
        The position of that number among the inputs.

    Returns
    -------
    str or None
        None if the number is none of torch's symbols, or a tensor with the length is not contiguous, or unknown.
    """
    symbol = expression_of(known[number]) if isinstance(known[number], torch.SymInt) else None
    if symbol is None or not symbol.is_Symbol:
        return None
    renamed = {symbol: "length"}

    def size_of(stated: Any, given: Any) -> Any:
        if not isinstance(stated, torch.SymInt) or symbol not in expression_of(stated).free_symbols:
            return given
        return str(expression_of(stated).subs(renamed))

    found: list = []
    for stated, given in zip(known, inputs, strict=True):
        if not isinstance(given, torch.Tensor):
            found.append(size_of(stated, given))
            continue
        if not isinstance(stated, torch.Tensor):
            return None
        sizes = [size_of(*pair) for pair in zip(stated.shape, given.shape, strict=True)]
        longer = any(isinstance(each, str) for each in sizes)
        if longer and not given.is_contiguous():
            return None
        found.append((sizes, None if longer else given.stride(), str(given.dtype), str(given.device)))
    return repr(found)


def with_length(key: str, length: str, capacity: int, contents: dict[int, str]) -> str:
    """Return a key of a graph at a capacity, for inputs that `length_of` describes."""
    return _hashed((key, "length", length, capacity, sorted(contents.items())))


def options_text(options: Options) -> str:
    """Return options as text.

    Raises
    ------
    NotStable
        If an option is an object, or asks for more than compiled code.
    """
    for name in _OF_THIS_PROCESS:
        if getattr(options, name):
            raise NotStable(f"option '{name}' is given")
    return repr([(each.name, getattr(options, each.name)) for each in fields(options)])


def content_of(tensor: torch.Tensor) -> str:
    """Return a hash of the numbers of a tensor."""
    plain = tensor.detach().resolve_neg().cpu().contiguous().reshape(-1)
    return hashlib.sha256(plain.view(torch.uint8).numpy()).hexdigest()


class _Description:
    """Writes graphs as nested tuples of plain values.

    Parameters
    ----------
    of_tensor : callable
        Tensor that a graph holds -> what stands for it.
    stable : bool
        Whether to raise `NotStable` where another process could not find the same.
    """

    def __init__(self, of_tensor: Callable[[torch.Tensor], Any], stable: bool):
        self._of_tensor, self._stable = of_tensor, stable

    def of_graph(self, graph: torch.fx.GraphModule) -> list:
        numbers = {node: _Number(at) for at, node in enumerate(graph.graph.nodes)}

        def of(value: Any) -> Any:
            return numbers[value] if isinstance(value, torch.fx.Node) else self._of_literal(value)

        return [
            (node.op, self._of_target(graph, node), map_aggregate(node.args, of), map_aggregate(node.kwargs, of))
            for node in graph.graph.nodes
        ]

    def _of_target(self, graph: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
        if node.op in ("placeholder", "output"):
            return ""
        if node.op in ("get_attr", "call_module"):
            return self._of_held(_attribute(graph, node.target))
        return str(node.target) if node.op == "call_method" or not self._stable else _name_of(node.target)

    def _of_held(self, value: Any) -> Any:
        if isinstance(value, torch.fx.GraphModule):
            return self.of_graph(value)
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value)
        return type(value).__name__ if isinstance(value, torch.nn.Module) and not self._stable else self._plain(value)

    def _of_literal(self, value: Any) -> Any:
        return value if isinstance(value, _OF_TORCH) else self._plain(value)

    def _plain(self, value: Any) -> Any:
        if self._stable and not isinstance(value, _PLAIN):
            raise NotStable(f"it holds an object of type '{type(value).__name__}'")
        return value


class _Number(int):
    """A node as its position in the graph; its text differs from that of an integer."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def _name_of(function: Any) -> str:
    """Return the name of a function of torch, with its operator's overload."""
    try:
        name = _get_qualified_name(function)
    except Exception as error:  # of several types, for what has no name
        raise NotStable(f"it calls {function}, which has no name") from error
    parts = name.split(".")
    own = len(parts) == 1 or parts[0] in _STABLE
    custom = parts[:2] == ["torch", "ops"] and parts[2] not in _OPERATORS
    if custom or not own or "<" in name:
        raise NotStable(f"it calls {name}, which is not torch's own")
    return name


def _state() -> tuple:
    """Return the settings of torch, outside of a graph, that its exporter reads."""
    kinds = ("cpu", "cuda")
    cast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    return str(cast), str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled()


@cache
def _versions() -> tuple:
    packages = {name: installed_version(name) for name in (*TVM_PINS, "torch", "onnxscript", "onnx")}
    return __version__, str(packages), tvm.__version__, _own_sources()


def _own_sources() -> str:
    """Return a hash of this package's code: between two versions, a checkout changes without another number."""
    root, total = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _hashed(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _attribute(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name)
    return owner


def _fact_of(value: Any) -> Any:
    return _facts(value) if isinstance(value, torch.Tensor) else value


def _facts(tensor: torch.Tensor) -> tuple:
    return tuple(tensor.shape), tensor.stride(), str(tensor.dtype), str(tensor.device)


def _content(tensor: torch.Tensor) -> tuple:
    return _facts(tensor), content_of(tensor)
