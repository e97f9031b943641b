# SPDX-License-Identifier: Apache-2.0
"""Operators that read or write where another tensor says."""

import numpy as np

from ..drawing import ANY, FLOATS, Drawing, NotDrawn
from .table import draws


def indices(
    g: Drawing, size: int, shape: tuple[int, ...], negative: bool = True, kinds=("int64", "int64", "int32")
) -> str:
    """Indices into an axis of this size: a constant, an input, or some tensor that holds such numbers."""
    if size == 0:
        raise NotDrawn
    low = -size if negative and g.chance(0.5) else 0
    if g.chance(0.25):
        fit = [
            name
            for name, value in g.values.items()
            if str(value.dtype) in kinds and value.shape == shape and value.size
            if value.min() >= (-size if negative else 0) and value.max() < size
        ]
        if fit:
            return g.pick(fit)
    value = g.rng.integers(low, size, shape)
    if g.chance(0.2) and len(shape) == 1:
        value = np.arange(shape[0]) % size
    value = value.astype(g.pick(kinds))
    return g.constant(value) if g.chance(0.4) else g.given(value)


@draws(4)
def gather(g: Drawing):
    x = g.tensor(ANY, 1)
    axis = g.axis(g.values[x].ndim)
    shape = g.pick([(), (), (1,), (g.between(1, 6),), (g.between(1, 6),), (2, g.between(1, 4)), (1, 2, 3)])
    g.node(
        "Gather", [x, indices(g, g.values[x].shape[axis], shape)], **({"axis": axis} if g.chance(0.9) or axis else {})
    )


@draws(1.5)
def gather_elements(g: Drawing):
    x = g.tensor(ANY, 1)
    axis = g.axis(g.values[x].ndim)
    shape = [dim if g.chance(0.6) else g.between(min(dim, 1), dim) for dim in g.values[x].shape]
    shape[axis] = g.between(1, 6)
    g.node("GatherElements", [x, indices(g, g.values[x].shape[axis], tuple(shape))], axis=axis)


def _tuples(g: Drawing, shape: tuple[int, ...], depth: int, lead: tuple[int, ...], distinct: bool = False) -> str:
    """Indices of `depth` numbers each; without two that are equal, if there may be none."""
    count, places = int(np.prod(lead, dtype=int)), int(np.prod(shape[:depth], dtype=int))
    if not places or (distinct and count > places):
        raise NotDrawn
    flat = g.rng.permutation(places)[:count] if distinct else g.rng.integers(0, places, count)
    value = np.stack(np.unravel_index(flat, shape[:depth]), -1).reshape(*lead, depth).astype("int64")
    if not distinct or g.chance(0.3):
        value = np.where(g.rng.random(value.shape) < 0.3, value - np.array(shape[:depth]), value)
    return g.constant(value) if g.chance(0.4) else g.given(value)


@draws(1.5)
def gather_nd(g: Drawing):
    x = g.tensor(ANY, 1)
    shape = g.values[x].shape
    batch = g.between(0, min(len(shape) - 1, 2)) if g.chance(0.3) else 0
    depth = g.between(1, len(shape) - batch)
    lead = shape[:batch] + tuple(g.between(1, 4) for _ in range(g.between(0 if batch else 1, 2)))
    at = _tuples(g, shape[batch:], depth, lead)
    g.node("GatherND", [x, at], **({"batch_dims": batch} if batch else {}))


@draws(1)
def scatter_nd(g: Drawing):
    x = g.tensor(FLOATS + ("int32", "int64"), 1)
    shape = g.values[x].shape
    depth = g.between(1, len(shape))
    at = _tuples(g, shape, depth, (g.between(1, 4),), distinct=True)
    new = g.given(g.numbers((*g.values[at].shape[:-1], *shape[depth:]), str(g.values[x].dtype)))
    how = {"reduction": g.pick(["add", "mul", "max", "min"])} if g.opset >= 18 and g.chance(0.3) else {}
    g.node("ScatterND", [x, at, new], **how)


@draws(1)
def scatter_elements(g: Drawing):
    x = g.tensor(FLOATS + ("int32", "int64"), 1)
    shape = list(g.values[x].shape)
    axis = g.axis(len(shape))
    size = shape[axis]
    shape = [dim if g.chance(0.7) else g.between(min(dim, 1), dim) for dim in shape]
    shape[axis] = g.between(min(size, 1), size)
    if not np.prod(shape):
        raise NotDrawn
    at = np.argsort(g.rng.random([size if i == axis % len(shape) else dim for i, dim in enumerate(shape)]), axis=axis)
    at = np.take(at, range(shape[axis]), axis=axis).astype("int64")
    at = np.where(g.rng.random(at.shape) < 0.2, at - size, at)
    new = g.given(g.numbers(tuple(shape), str(g.values[x].dtype)))
    how = {"reduction": g.pick(["add", "mul", "max", "min"])} if g.opset >= 18 and g.chance(0.3) else {}
    g.node("ScatterElements", [x, g.constant(at) if g.chance(0.4) else g.given(at), new], axis=axis, **how)


@draws(1)
def one_hot(g: Drawing):
    depth = g.between(1, 9)
    at = indices(g, depth, g.shape(0, 3))
    values = g.constant([g.between(-2, 0), g.between(1, 3)], g.pick(["float32", "int64", "int32"]))
    rank = g.values[at].ndim + 1
    deep = g.constant(depth if g.chance(0.5) else [depth], "int64")
    g.node("OneHot", [at, deep, values], axis=g.between(-rank, rank - 1))


@draws(0.7)
def reverse_sequence(g: Drawing):
    x = g.tensor(FLOATS + ("int32", "int64"), 2)
    batch = g.between(0, 1)
    many, length = g.values[x].shape[batch], g.values[x].shape[1 - batch]
    if not many * length:
        raise NotDrawn
    lengths = g.rng.integers(1, length, many, endpoint=True).astype("int64")
    at = g.constant(lengths) if g.chance(0.5) else g.given(lengths)
    g.node("ReverseSequence", [x, at], batch_axis=batch, time_axis=1 - batch)
