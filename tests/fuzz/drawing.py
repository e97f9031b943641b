# SPDX-License-Identifier: Apache-2.0
"""The graph that is being drawn. ONNX Runtime computes each node at once: shapes, types and values are known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import reference
from .case import reads

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int32", "int64", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTEGERS
ANY = (*NUMBERS, "bool")
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 31, 32, 64)
_LIKELY = np.array([10, 12, 12, 14, 8, 6, 6, 9, 3, 3, 3, 5, 3, 2, 3, 1], "f8")
BOUND = {"float16": 2.0**9, "float32": 1e5, "float64": 1e5}
"""The largest magnitude of a tensor that is kept: what is larger ends in infinities soon."""
IR_VERSION = 10


class NotDrawn(Exception):
    """Nothing comes of this node: ONNX Runtime refuses it, its numbers are too large, or no tensor is fit for it."""


class Drawing:
    """A graph, node by node.

    Attributes
    ----------
    rng : numpy.random.Generator
    opset : int
    limit : int
        The most elements of a tensor.
    units : float
        How often a dimension is 1, whatever else it might be.
    values : dict
        Name of a tensor -> what is in it.
    inputs, constants : dict
        Those of `values` that are given, and those that the model states.
    nodes : list of onnx.NodeProto
    readers : Counter
        How many nodes read a tensor.
    """

    def __init__(self, rng: np.random.Generator, opset: int, limit: int, units: float = 0.0):
        self.rng, self.opset, self.limit, self.units = rng, opset, limit, units
        self.values: dict[str, np.ndarray] = {}
        self.inputs: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.readers: Counter[str] = Counter()
        self.dtype = str(
            rng.choice(["float32", "float16", "float64", "int32", "int64"], p=[0.7, 0.08, 0.08, 0.08, 0.06])
        )
        self.empty = bool(rng.random() < 0.04)
        self.endless = bool(rng.random() < 0.04)
        self.depth = 0  # of graphs in each other
        self._count = 0

    # Choices

    def chance(self, share: float) -> bool:
        """True, so often."""
        return bool(self.rng.random() < share)

    def pick(self, things):
        """One of these."""
        return things[int(self.rng.integers(len(things)))]

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def axis(self, rank: int) -> int:
        """An axis of a tensor, half of them counted from the end."""
        if rank == 0:
            raise NotDrawn
        return self.between(-rank, rank - 1)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Some axes, each once, in any order, some counted from the end."""
        if rank < least:
            raise NotDrawn
        chosen = self.rng.permutation(rank)[: self.between(least, rank)]
        return [int(axis) - rank * self.chance(0.3) for axis in chosen]

    def size(self) -> int:
        """A dimension."""
        if self.empty and self.chance(0.1):
            return 0
        if self.units and self.chance(self.units):
            return 1
        return int(self.rng.choice(SIZES, p=_LIKELY / _LIKELY.sum()))

    def shape(self, low: int = 0, high: int = 6) -> tuple[int, ...]:
        """A shape with so many dimensions, square ones among them."""
        ranks = np.arange(low, high + 1)
        likely = np.array([2, 4, 8, 9, 8, 4, 2], "f8")[np.clip(ranks, 0, 6)]
        rank = int(self.rng.choice(ranks, p=likely / likely.sum()))
        dims = [self.size()] * rank if self.chance(0.15) else [self.size() for _ in range(rank)]
        while np.prod(dims, dtype=float) > self.limit:
            at = int(np.argmax(dims))
            dims[at] = max(1, dims[at] // 2)
        return tuple(dims)

    # Tensors

    def tensor(self, kinds=FLOATS, low: int = 0, high: int = 6, below: float = np.inf, where=None) -> str:
        """A tensor of one of these types, with so many dimensions and magnitudes, mostly one that was made lately."""
        fit = [name for name in self.values if self._fits(name, kinds, low, high, below, where)]
        if fit and not self.chance(0.08):
            return fit[max(0, len(fit) - 1 - int(self.rng.exponential(3.0)))]
        kinds = [self.dtype] if self.dtype in kinds and self.chance(0.8) else kinds
        name = self.given(self.numbers(self.shape(low, high), self.pick(kinds), below))
        if not self._fits(name, kinds, low, high, below, where):
            raise NotDrawn
        return name

    def _fits(self, name: str, kinds, low: int, high: int, below: float, where) -> bool:
        value = self.values[name]
        if str(value.dtype) not in kinds or not low <= value.ndim <= high:
            return False
        if below < np.inf and value.size and value.dtype != bool and not np.abs(value.astype("f8")).max() <= below:
            return False
        return where is None or bool(where(value))

    def partner(self, name: str, below: float = np.inf, kinds=None) -> str:
        """Another tensor that goes with this one by broadcasting, of the same type or one of these."""
        value = self.values[name]
        kinds = kinds or (str(value.dtype),)

        def goes(other: np.ndarray) -> bool:
            return _broadcast_size(value.shape, other.shape) <= self.limit

        if self.chance(0.6):
            fit = [each for each in self.values if self._fits(each, kinds, 0, 6, below, goes)]
            if fit:
                return self.pick(fit)
        return self.given(self.numbers(self.beside(value.shape), self.pick(kinds), below))

    def beside(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts with this one."""
        if self.chance(0.3):
            return shape
        dims = [1 if self.chance(0.3) else dim for dim in shape]
        dims = [self.size() if dim == 1 and self.chance(0.2) else dim for dim in dims]
        dims = dims[self.between(0, len(dims)) if self.chance(0.4) else 0 :]
        return tuple(dims) if _broadcast_size(shape, tuple(dims)) <= self.limit else shape

    def numbers(self, shape: tuple[int, ...], dtype: str, below: float = np.inf) -> np.ndarray:
        """Numbers of this type: normal ones, whole ones with ties, or all different."""
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        size = int(np.prod(shape, dtype=int))
        if dtype not in FLOATS:
            high = 100 if below >= 100 and self.chance(0.2) else min(8, below)
            low = 0 if dtype.startswith("u") else -high
            wide = dtype == "int64" and below == np.inf and self.chance(0.15)
            return (self.rng.integers(low, high, shape, endpoint=True) * (2**33 if wide else 1)).astype(dtype)
        style = self.rng.random()
        if style < 0.6:
            found = self.rng.standard_normal(shape)
        elif style < 0.75:
            found = self.rng.integers(-4, 4, shape, endpoint=True)
        elif style < 0.9:
            found = self.rng.random(shape)
        else:
            found = self.rng.permutation(size).reshape(shape) * (4 / max(size, 1)) - 2
        found = np.clip(np.asarray(found).astype(dtype), -below, below)
        if self.endless and below == np.inf and self.chance(0.3):
            found = np.where(self.rng.random(shape) < 0.3, self.pick([np.inf, -np.inf, np.nan]), found).astype(dtype)
        return np.asarray(found, dtype)

    def given(self, value: np.ndarray, inputs: float = 0.75) -> str:
        """A tensor with these numbers: an input, so often, or a constant."""
        if len(self.inputs) < 8 and self.chance(inputs):
            name = self._name("x")
            self.inputs[name] = self.values[name] = np.asarray(value)
            return name
        return self.constant(value)

    def constant(self, value, dtype: str | None = None) -> str:
        """A tensor with these numbers that the model states: an initializer or a node; perhaps one that is there."""
        value = np.asarray(value, dtype)
        for name, other in self.constants.items():
            same = other.dtype == value.dtype and other.shape == value.shape
            if same and np.array_equal(other, value) and self.chance(0.7):
                return name
        name = self._name("c")
        self.constants[name] = self.values[name] = value
        if self.chance(0.3):
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name)))
        return name

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # Nodes

    def node(self, op: str, inputs: list[str], outputs: int = 1, large: bool = False, **attributes):
        """Add a node; the name of its output, or of each of them.

        Parameters
        ----------
        large : bool
            Results may be as large as they like.
        """
        if not _exists(op, self.opset):
            raise NotDrawn(f"{op} is not in opset {self.opset}")
        names = [self._name("t") for _ in range(outputs)]
        node = helper.make_node(op, inputs, names, name=f"{op}_{names[0]}", **attributes)
        made = dict(zip(names, self._compute(node), strict=True))
        for value in made.values():
            self._accept(op, value, large)
        self.values |= made
        self.nodes.append(node)
        self.readers.update(each for each in inputs if each)
        return names[0] if outputs == 1 else names

    def _compute(self, node: onnx.NodeProto) -> list[np.ndarray]:
        used = {name: self.values[name] for name in sorted(reads(node))}
        stated = [numpy_helper.from_array(value, name) for name, value in used.items() if name in self.constants]
        feeds = {name: value for name, value in used.items() if name not in self.constants}
        try:
            return reference.run(make_model([node], feeds, dict.fromkeys(node.output), stated, self.opset), feeds)
        except reference.Refused as error:
            raise NotDrawn(str(error)) from error

    def _accept(self, op: str, value: np.ndarray, large: bool) -> None:
        if value.size > self.limit or value.ndim > 6:
            raise NotDrawn(f"{op} makes a tensor of {value.size} elements")
        if large or self.endless or str(value.dtype) not in BOUND or not value.size:
            return
        if not np.abs(value).max() <= BOUND[str(value.dtype)]:
            raise NotDrawn(f"{op} makes large numbers, or none")

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        """The graph so far, with these results; inputs without readers are left out."""
        by_node = {name for node in self.nodes for name in node.output}
        stated = [
            numpy_helper.from_array(v, n) for n, v in self.constants.items() if n not in by_node and self.readers[n]
        ]
        inputs = {name: value for name, value in self.inputs.items() if self.readers[name]}
        return make_model(self.nodes, inputs, {name: self.values[name] for name in outputs}, stated, self.opset)


def make_model(nodes, inputs: dict, outputs: dict, constants: list, opset: int) -> onnx.ModelProto:
    """A model; outputs without a value have no stated type, which only ONNX Runtime takes."""
    typed = [
        helper.make_empty_tensor_value_info(name) if value is None else _value_info(name, value)
        for name, value in outputs.items()
    ]
    graph = helper.make_graph(nodes, "drawn", [_value_info(*each) for each in inputs.items()], typed, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def _value_info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _broadcast_size(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    try:
        return float(np.prod(np.broadcast_shapes(a, b), dtype=float))
    except ValueError:
        return np.inf


def _exists(op: str, opset: int) -> bool:
    try:
        onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return False
    return True
