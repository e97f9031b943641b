# SPDX-License-Identifier: Apache-2.0
"""Simplify the numbers in a case and shrink its sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from .case import Case, Evaluate
from .cuts import typed

_RANGES = ((-3, 4), (1, 4))  # the second for tensors that must be positive, like a variance
_SMALL = 8  # elements of an initializer that stays unchanged


def numbers(case: Case) -> list[str]:
    """Return the floating point inputs, and floating point initializers of more than `_SMALL` elements."""
    stored = {each.name: numpy_helper.to_array(each) for each in case.model.graph.initializer}
    large = {name: array for name, array in stored.items() if array.size > _SMALL}
    return [name for name, array in {**case.arrays, **large}.items() if np.issubdtype(array.dtype, np.floating)]


def simpler(case: Case, names: list[str]) -> Iterator[Case]:
    """Yield the case with small integers, drawn with a fixed seed, in these tensors."""
    for low, high in _RANGES:
        random, model = np.random.default_rng(0), onnx.ModelProto()
        model.CopyFrom(case.model)
        arrays = dict(case.arrays)
        for name in names:
            if name in arrays:
                arrays[name] = random.integers(low, high, arrays[name].shape).astype(arrays[name].dtype)
        for tensor in model.graph.initializer:
            if tensor.name in names:
                old = numpy_helper.to_array(tensor)
                new = random.integers(low, high, old.shape).astype(old.dtype)
                tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))
        yield Case(model, arrays)


def sizes(case: Case) -> list[int]:
    """Return the sizes above 1 of the dimensions of inputs and initializers, the largest first."""
    shapes = [array.shape for array in case.arrays.values()]
    shapes += [tuple(each.dims) for each in case.model.graph.initializer]
    return sorted({size for shape in shapes for size in shape if size > 1}, reverse=True)


def smaller(case: Case, size: int, evaluate: Evaluate) -> Iterator[Case]:
    """Yield the case with each dimension of `size`, also in stored shapes, cut to a first part."""
    for new in sorted({1, 2, size // 2} - {size, 0}):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.dtype == np.int64 and array.ndim == 1 and array.size <= _SMALL:
                array = np.where(array == size, new, array)
            elif size in array.shape:
                array = _first(array, size, new)
            else:
                continue
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(array, order="C"), tensor.name))
        arrays = {name: _first(array, size, new) for name, array in case.arrays.items()}
        for kind, found in ((model.graph.input, arrays), (model.graph.output, None)):
            names = [value.name for value in kind]
            found = evaluate(Case(model, arrays), names) if found is None else found
            if not all(name in found for name in names):
                break
            del kind[:]
            kind.extend(typed(name, found[name]) for name in names)
        else:
            yield Case(model, arrays)


def _first(array: np.ndarray, size: int, new: int) -> np.ndarray:
    return np.asarray(array[tuple(slice(new if n == size else n) for n in array.shape)], order="C")
