# SPDX-License-Identifier: Apache-2.0
"""A small case for each operator of ONNX in each version of its schema: inputs, attributes and what is right.

A case holds for the versions `first` to `last` of its operator, or for all. What is right is what ONNX Runtime computes
for the very model; if it does not take it, ``want`` in numpy, for forms that no longer exist; else what the newest
version of the operator computes for the same inputs, of which the case then says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NEWEST = onnx.defs.onnx_opset_version()


@dataclass(frozen=True)
class Stated:
    """An input that the model states: an initializer."""

    value: np.ndarray


@dataclass(frozen=True)
class Case:
    """One node, or a small graph, in one form.

    Attributes
    ----------
    op : str
    inputs : list
        Arrays; `Stated` ones; None for one that is left out.
    first, last : int
        Versions of the operator that have this form.
    outputs : int
        How many results it names.
    want : callable, optional
        From the inputs to the results.
    attrs : dict
        Attributes; ``old`` ones are left out where the newest version computes what is right.
    graph : callable, optional
        From the opset to nodes, for what is no single node; it reads ``x0, x1 ...`` and writes ``y0, y1 ...``.
    """

    op: str
    inputs: list
    first: int = 1
    last: int = NEWEST
    outputs: int = 1
    want: Callable | None = None
    attrs: dict = field(default_factory=dict)
    old: dict = field(default_factory=dict)
    graph: Callable | None = None

    def model(self, opset: int, with_old: bool = True) -> onnx.ModelProto:
        """The model of this case; its outputs have no stated types."""
        names = [f"x{number}" if each is not None else "" for number, each in enumerate(self.inputs)]
        results = [f"y{number}" for number in range(self.outputs)]
        old = {name: value for name, value in self.old.items() if with_old and _has(self.op, opset, name)}
        if self.graph is None:
            nodes = [helper.make_node(self.op, names, results, name=self.op.lower(), **self.attrs, **old)]
        else:
            nodes = self.graph(opset)
        given = [_info(name, value) for name, value in zip(names, self.inputs) if isinstance(value, np.ndarray)]
        stated = [(name, each.value) for name, each in zip(names, self.inputs) if isinstance(each, Stated)]
        graph = helper.make_graph(
            nodes,
            "case",
            given,
            [helper.make_empty_tensor_value_info(name) for name in results],
            [numpy_helper.from_array(value, name) for name, value in stated],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The inputs that are given."""
        return {f"x{number}": each for number, each in enumerate(self.inputs) if isinstance(each, np.ndarray)}

    @property
    def values(self) -> list:
        """All inputs, those that the model states too."""
        return [each.value if isinstance(each, Stated) else each for each in self.inputs]


def _info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _has(op: str, opset: int, attribute: str) -> bool:
    return onnx.defs.has(op, opset) and attribute in onnx.defs.get_schema(op, opset).attributes


@cache
def versions() -> dict[str, list[int]]:
    """Operator of ONNX's own domain -> the versions of its schema."""
    found: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, []).append(schema.since_version)
    return {name: sorted(numbers) for name, numbers in sorted(found.items())}


def withdrawn() -> set[tuple[str, int]]:
    """Versions that say that the operator is no more."""
    every = onnx.defs.get_all_schemas_with_history()
    return {(each.name, each.since_version) for each in every if each.domain == "" and each.deprecated}


_REGISTERED: list[Case] = []


def case(
    op: str, *inputs, first: int = 1, last: int = NEWEST, outputs: int = 1, want=None, old=None, graph=None, **attrs
):
    """Enter a case, for one operator or several with spaces between."""
    for name in op.split():
        _REGISTERED.append(Case(name, list(inputs), first, last, outputs, want, attrs, old or {}, graph))


def all_cases() -> Iterator[tuple[str, Case, int]]:
    """A name, a case and the opset that it is of, for each version of each operator."""
    for op, numbers in versions().items():
        for version in numbers:
            found = [each for each in registered() if each.op == op and each.first <= version <= each.last]
            for number, each in enumerate(found):
                yield f"{op}-{version}" + (f"-{number}" if number else ""), each, version


@cache
def registered() -> list[Case]:
    """Every case."""
    from onnx_versions import elementwise, graphs, movement, products, quantized, reductions, windows  # noqa: F401

    return list(_REGISTERED)


R = np.random.RandomState(0)


def f(*shape: int) -> np.ndarray:
    """Normal numbers."""
    return np.asarray(R.randn(*shape)).astype("f4")


def p(*shape: int) -> np.ndarray:
    """Positive numbers."""
    return (np.abs(f(*shape)) + 0.5).astype("f4")


def i64(*values) -> Stated:
    """Whole numbers that the model states."""
    return Stated(np.array(values, "int64"))


def stated(value, dtype: str = "f4") -> Stated:
    """Numbers that the model states."""
    return Stated(np.asarray(value, dtype))


__all__ = ["NEWEST", "Case", "Stated", "TensorProto", "all_cases", "case", "f", "i64", "p", "stated", "versions"]
