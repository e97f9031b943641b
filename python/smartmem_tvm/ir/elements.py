# SPDX-License-Identifier: Apache-2.0
"""Evaluate a kernel at given elements of its result, on inputs whose values identify their places.

No tensor is allocated. The value of an input element is a pseudo-random number derived from its place, so two
expressions agree if they read the same elements and apply the same arithmetic. Index arithmetic is exact. A smooth
function that depends on the name stands in for functions like ``exp``. A reduction adds only a few of its terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

import numpy as np
from tvm import ir, tirx

from .index_map import EVALUATE, NotAnIndex, function_name, is_if_then_else
from .kernel import Kernel, Stage

_TERMS = 4  # terms of a reduction that are added
_INTEGERS = 5  # elements of integer tensors are below this: they may be used as indices
_PRIMES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
_ARITHMETIC = {**EVALUATE, tirx.Div: np.true_divide, tirx.Mod: np.fmod}

Source = Callable[[Sequence[np.ndarray], str], np.ndarray]
"""(indices, dtype) -> elements of a tensor at these indices."""


def places(name: int) -> Source:
    """Return the source of the tensor with this number; no two numbers have the same elements."""

    def at(indices: Sequence[np.ndarray], dtype: str) -> np.ndarray:
        return _drawn([np.asarray(name), *indices], dtype)

    return at


def _drawn(parts: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    mixed = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            mixed = (mixed ^ (np.asarray(part).astype(np.uint64) + np.uint64(_PRIMES[0]))) * np.uint64(_PRIMES[1])
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_PRIMES[2])
            mixed = mixed ^ (mixed >> np.uint64(32))
    if dtype == "bool":
        return mixed % np.uint64(2) == 1
    if dtype.startswith(("int", "uint")):
        return (mixed % np.uint64(_INTEGERS)).astype(np.int64)
    sizes = 0.5 + (mixed >> np.uint64(11)) / 2.0**53  # not near 0: the kernel may divide by it
    return np.where(mixed & np.uint64(1) == 1, sizes, -sizes)


class Elements:
    """The elements of a kernel's output.

    Parameters
    ----------
    kernel : Kernel
        Kernel with one output.
    sources : mapping
        Input buffer -> source of its elements.
    """

    def __init__(self, kernel: Kernel, sources: Mapping):
        self._sources, self._writers = sources, {}
        self._last = kernel.outputs[0]
        for stage in kernel.stages:
            self._writers.update(dict.fromkeys(stage.outputs, stage))
        self.trace: list[tuple[str, list[int]]] | None = None

    def __call__(self, indices: Sequence[np.ndarray], _dtype: str = "") -> np.ndarray:
        """Return the elements at `indices`: one array for each dimension, all of one length.

        Raises
        ------
        NotAnIndex
            If the kernel contains anything but loads, arithmetic, calls and selects.
        """
        with np.errstate(all="ignore"):
            return self._load(self._last, [np.asarray(each) for each in indices], "")

    def _load(self, buffer, indices: list[np.ndarray], dtype: str) -> np.ndarray:
        if buffer in self._writers:
            return self._computed(self._writers[buffer], indices)
        source = self._sources[buffer]
        if isinstance(source, Elements):
            source.trace = self.trace
        elif self.trace is not None:
            self.trace.append((buffer.name, [int(each.reshape(-1)[0]) for each in indices]))
        return source(indices, dtype)

    def _computed(self, stage: Stage, indices: list[np.ndarray]) -> np.ndarray:
        store = stage.body
        if not isinstance(store, tirx.BufferStore):
            raise NotAnIndex(f"stage {stage.name} is more than one store")
        point = dict.fromkeys(stage.spatial, np.zeros((), np.int64))
        for index, value in zip(store.indices, indices, strict=True):
            if isinstance(index, ir.Var) and index in point:
                point[index] = value
            elif not isinstance(index, tirx.IntImm):
                raise NotAnIndex(f"stage {stage.name} writes at {index}")
        if not stage.reduction:
            return self._value(store.value, point, stage)
        terms = _terms([stage.extents[var] for var in stage.reduction])
        point = {var: np.asarray(value)[..., None] for var, value in point.items()}
        point.update(zip(stage.reduction, terms, strict=True))
        found = np.asarray(self._value(store.value, point, stage))
        shape = np.broadcast_shapes(found.shape, *(each.shape for each in point.values()))
        return np.broadcast_to(found, shape).sum(-1)

    def _value(self, expr, point: Mapping, stage: Stage) -> np.ndarray:
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return np.asarray(expr.value)
        if isinstance(expr, ir.Var) and expr in point:
            return point[expr]
        if isinstance(expr, ir.TensorLoad):
            if any(expr.source.same_as(each) for each in stage.outputs):
                return np.zeros(())  # the partial sum
            indices = [self._value(index, point, stage) for index in expr.indices]
            return self._load(expr.source, indices, expr.ty.dtype)
        if isinstance(expr, tirx.Cast):
            value = self._value(expr.value, point, stage)
            return np.floor(value).astype(np.int64) if _cuts(expr, value) else value
        if isinstance(expr, tirx.Select) or is_if_then_else(expr):
            return self._chosen(expr, point, stage)
        if isinstance(expr, tirx.Not):
            return np.logical_not(self._value(expr.a, point, stage))
        if type(expr) in _ARITHMETIC:
            return _ARITHMETIC[type(expr)](self._value(expr.a, point, stage), self._value(expr.b, point, stage))
        if isinstance(expr, ir.Call):
            return self._called(expr, point, stage)
        raise NotAnIndex(f"{expr} is a {type(expr).__name__}")

    def _chosen(self, expr, point: Mapping, stage: Stage) -> np.ndarray:
        """Evaluate a select; a branch that no point takes is not evaluated, as it may have no value."""
        select = isinstance(expr, tirx.Select)
        condition, yes, no = (expr.condition, expr.true_value, expr.false_value) if select else expr.args
        holds = np.asarray(self._value(condition, point, stage), bool)
        if holds.all() or not holds.any():
            return self._value(yes if holds.all() else no, point, stage)
        return np.where(holds, self._value(yes, point, stage), self._value(no, point, stage))

    def _called(self, call: ir.Call, point: Mapping, stage: Stage) -> np.ndarray:
        name = function_name(call)
        total = np.asarray(crc32(name.encode()) % 1009 / 100.0)
        for number, arg in enumerate(call.args):
            if type(arg).__name__ != "StringImm":  # by name: the class is in another module in other versions of TVM
                total = total + (1.3 + number) * np.asarray(self._value(arg, point, stage), np.float64)
        smooth = np.sin(total) + 2.0
        return np.floor(smooth).astype(np.int64) if str(call.ty.dtype).startswith(("int", "uint")) else smooth


def _cuts(cast: tirx.Cast, value: np.ndarray) -> bool:
    return str(cast.ty.dtype).startswith(("int", "uint")) and np.asarray(value).dtype.kind == "f"


def _terms(extents: Sequence[int]) -> list[np.ndarray]:
    """Return a few points of a reduction: all if they are few, else two corners and some drawn with a fixed seed."""
    if math.prod(extents) <= _TERMS:
        return [each.reshape(-1) for each in np.indices(extents)]
    random = np.random.default_rng(len(extents))
    return [np.concatenate([[0, extent - 1], random.integers(0, extent, _TERMS - 2)]) for extent in extents]
