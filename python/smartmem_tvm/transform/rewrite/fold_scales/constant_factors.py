# SPDX-License-Identifier: Apache-2.0
"""Move constant factors (or summands) of a tensor through operators that only move data.

A factor is an array with as many axes as the tensor, each of the tensor's extent or 1; it is moved like the tensor.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ....ir.block import Bindings, operator, shape_of

RESHAPES = ("reshape", "squeeze", "expand_dims", "flatten")
# Elements of the largest tensor that a factor is broadcast to in order to see how a reshape moves the factor.
_WRITTEN_OUT = 1 << 24


def aligned(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a constant operand as a factor of a tensor of this shape; None if it would broadcast the tensor."""
    if array.ndim > len(shape):
        return None
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    fits = all(n in (1, extent) for n, extent in zip(array.shape, shape))
    return array if fits else None


def trimmed(array: np.ndarray, ndim: int) -> np.ndarray:
    """Return the array without leading axes of extent 1 beyond `ndim`: a bias stays a vector."""
    extra = max(array.ndim - ndim, 0)
    return array.reshape(array.shape[extra:]) if all(n == 1 for n in array.shape[:extra]) else array


def moved_back(value, factor: np.ndarray) -> np.ndarray | None:
    """Return the factor of a movement's operand that gives this factor of its result; None for other operators."""
    name = operator(value)
    if name == "permute_dims":
        return factor.transpose(np.argsort(_axes(value, factor.ndim)))
    return _reshaped(factor, shape_of(value), shape_of(value.args[0])) if name in RESHAPES else None


def moved_on(value, factor: np.ndarray) -> np.ndarray | None:
    """Return the factor of a movement's result that this factor of its operand gives; None for other operators."""
    name = operator(value)
    if name == "permute_dims":
        return factor.transpose(_axes(value, factor.ndim))
    if name == "strided_slice":
        part = slice_of(value)
        return None if part is None else _taken(factor, *part)
    return _reshaped(factor, shape_of(value.args[0]), shape_of(value)) if name in RESHAPES else None


def _taken(factor: np.ndarray, axis: int, indices: np.ndarray) -> np.ndarray:
    return factor if factor.shape[axis] == 1 else factor.take(indices, axis)


def _axes(value, ndim: int) -> list[int]:
    axes = value.attrs.axes
    return list(range(ndim))[::-1] if axes is None else [int(axis) % ndim for axis in axes]


def _reshaped(factor: np.ndarray, before: tuple[int, ...], after: tuple[int, ...]) -> np.ndarray | None:
    if factor.size == 1:
        return factor.reshape((1,) * len(after))
    if math.prod(before) > _WRITTEN_OUT:
        return None
    full = np.broadcast_to(factor, before).reshape(after)
    for axis in range(full.ndim):
        first = full.take([0], axis)
        if (full == first).all():
            full = first
    return full


def slice_of(value) -> tuple[int, np.ndarray] | None:
    """Return the axis and the indices that a ``strided_slice`` along one axis takes."""
    source = shape_of(value.args[0])
    axes, begin, end, *strides = ([int(each) for each in getattr(arg, "fields", arg)] for arg in value.args[1:])
    if len(axes) != 1:
        return None
    axis = axes[0] % len(source)
    return axis, np.arange(source[axis])[begin[0] : end[0] : strides[0][0] if strides else 1]


def part_of(block: Bindings, value) -> tuple[int, np.ndarray] | None:
    """Return the axis and the indices that a slice along one axis, or a field of a split, takes of a tensor."""
    if operator(value) == "strided_slice":
        return slice_of(value)
    split = block.values.get(value.tuple_value) if isinstance(value, relax.TupleGetItem) else None
    if operator(split) != "split":
        return None
    axis = int(split.attrs.axis) % len(shape_of(split.args[0]))
    sizes = [int(field.shape[axis]) for field in split.ty.fields]
    start = sum(sizes[: value.index])
    return axis, np.arange(start, start + sizes[value.index])
