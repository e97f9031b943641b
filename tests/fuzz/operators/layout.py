# SPDX-License-Identifier: Apache-2.0
"""Operators that move numbers to places that are known when the model is compiled."""

import math

import numpy as np

from ..drawing import ANY, FLOATS, NUMBERS, Drawing, NotDrawn
from .table import draws

FAR = [2**31 - 1, 2**63 - 1, -(2**63), -(2**31)]  # bounds of slices that exporters write for "to the end"


def factored(g: Drawing, size: int, low: int = 0, high: int = 6) -> list[int]:
    """A shape with so many elements."""
    rank = g.between(low, high)
    if size == 0:
        dims = [g.between(1, 4) for _ in range(max(rank, 1))]
        dims[g.between(0, len(dims) - 1)] = 0
        return dims
    if rank == 0:
        return [] if size == 1 else [size]
    dims = [1] * rank
    for prime in _primes(size):
        dims[g.between(0, rank - 1)] *= prime
    return dims


def _primes(size: int) -> list[int]:
    found, prime = [], 2
    while size > 1:
        while size % prime == 0:
            found.append(prime)
            size //= prime
        prime += 1
    return found


def reshape_to(g: Drawing, x: str, dims: list[int]) -> str:
    """Reshape; a dimension may be -1, 0 where it is that of the input, or all of them come from a `Shape` node."""
    shape, size = g.values[x].shape, g.values[x].size
    target = list(dims)
    if size:
        for i in range(min(len(target), len(shape))):
            if target[i] == shape[i] and g.chance(0.3):
                target[i] = 0
        if target and g.chance(0.4):
            target[g.between(0, len(target) - 1)] = -1
        return g.node("Reshape", [x, g.constant(target, "int64")])
    return g.node("Reshape", [x, g.constant(target, "int64")], allowzero=1)


@draws(5)
def reshape(g: Drawing):
    x = g.tensor(ANY)
    reshape_to(g, x, factored(g, g.values[x].size))


@draws(1)
def reshape_like(g: Drawing):
    """To the shape of another tensor, computed in the graph."""
    x = g.tensor(ANY)
    if not g.values[x].size:
        raise NotDrawn
    size = g.values[x].size
    like = g.tensor(ANY, where=lambda v: v.size == size) if g.chance(0.7) else x
    shape = g.node("Shape", [like])
    if g.values[like].ndim > 1 and g.chance(0.5):
        first = g.node("Slice", [shape, g.constant([0]), g.constant([g.between(1, g.values[like].ndim - 1)])])
        shape = g.node("Concat", [first, g.constant([-1])], axis=0)
    g.node("Reshape", [x, shape])


@draws(6)
def transpose(g: Drawing):
    x = g.tensor(ANY, 1)
    rank = g.values[x].ndim
    attributes = {} if g.chance(0.1) else {"perm": [int(i) for i in g.rng.permutation(rank)]}
    g.node("Transpose", [x], **attributes)


@draws(5)
def slice_(g: Drawing):
    x = g.tensor(ANY, 1)
    shape = g.values[x].shape
    axes = g.axes(len(shape), 1)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = shape[axis]
        step = int(g.rng.choice([1, 2, 3, -1, -2, -3, 50, -50], p=[0.45, 0.13, 0.06, 0.2, 0.08, 0.04, 0.02, 0.02]))
        start, end = sorted((g.between(0, size), g.between(0, size)))
        if end - start < size / 4 and g.chance(0.7):
            start, end = 0, size
        if step < 0:
            start, end = end - 1, start - 1
            start = start - size if g.chance(0.3) and start < size else start
            end = g.pick([-size - 1, -(2**63), -(2**31)]) if end < 0 else end
        else:
            start = start - size if g.chance(0.3) and start < size else start
            end = end - size if g.chance(0.3) and end < size else g.pick([size, *FAR[:2]]) if end == size else end
        starts.append(start), ends.append(end), steps.append(step)
    kind = "int64" if g.chance(0.8) or max(map(abs, starts + ends)) >= 2**31 else "int32"
    given = [g.constant(each, kind) for each in (starts, ends)]
    if g.chance(0.9) or steps != [1] * len(steps) or axes != list(range(len(axes))):
        given.append(g.constant(axes, kind))
    if len(given) == 3 and (steps != [1] * len(steps) or g.chance(0.3)):
        given.append(g.constant(steps, kind))
    y = g.node("Slice", [x, *given])
    if not g.values[y].size and not g.empty:
        g.empty = g.chance(0.3)


def alike(g: Drawing, x: str, axis: int) -> str:
    """A tensor that goes with another one but for one axis."""
    value = g.values[x]
    axis %= value.ndim

    def goes(other: np.ndarray) -> bool:
        rest = lambda shape: (*shape[:axis], *shape[axis + 1 :])  # noqa: E731
        return other.ndim == value.ndim and rest(other.shape) == rest(value.shape)

    fit = [n for n, v in g.values.items() if v.dtype == value.dtype and goes(v)]
    if g.chance(0.7):
        return g.pick(fit)
    shape = (*value.shape[:axis], g.size(), *value.shape[axis + 1 :])
    return g.given(g.numbers(shape, str(value.dtype)))


@draws(4)
def concat(g: Drawing):
    x = g.tensor(ANY, 1)
    axis = g.axis(g.values[x].ndim)
    others = [alike(g, x, axis) for _ in range(g.pick([0, 1, 1, 1, 2, 2, 3, 7]))]
    parts = [x, *others]
    g.node("Concat", [parts[i] for i in g.rng.permutation(len(parts))], axis=axis)


@draws(4)
def split(g: Drawing):
    x = g.tensor(ANY, 1)
    axis = g.axis(g.values[x].ndim)
    size = g.values[x].shape[axis]
    count = g.between(1, min(max(size, 1), 6))
    if g.chance(0.5):
        cuts = sorted(g.between(0, size) for _ in range(count - 1)) if g.chance(0.1) else None
        cuts = cuts or sorted(int(c) for c in 1 + g.rng.permutation(max(size - 1, 0))[: count - 1])
        parts = np.diff([0, *cuts, size])
        g.node("Split", [x, g.constant(parts, "int64")], len(parts), axis=axis)
    else:
        g.node("Split", [x], count, axis=axis, **({"num_outputs": count} if g.opset >= 18 else {}))


@draws(2)
def squeeze(g: Drawing):
    x = g.tensor(ANY, 1, where=lambda v: 1 in v.shape)
    rank = g.values[x].ndim
    ones = [i - rank * g.chance(0.3) for i, dim in enumerate(g.values[x].shape) if dim == 1]
    chosen = [ones[i] for i in g.rng.permutation(len(ones))[: g.between(1, len(ones))]]
    g.node("Squeeze", [x, g.constant(chosen, "int64")] if g.chance(0.8) else [x])


@draws(2)
def unsqueeze(g: Drawing):
    x = g.tensor(ANY, 0, 5)
    rank = g.values[x].ndim
    more = g.between(1, min(3, 6 - rank))
    chosen = [int(i) - (rank + more) * g.chance(0.3) for i in g.rng.permutation(rank + more)[:more]]
    g.node("Unsqueeze", [x, g.constant(chosen, "int64")])


@draws(1)
def flatten(g: Drawing):
    x = g.tensor(ANY)
    rank = g.values[x].ndim
    g.node("Flatten", [x], axis=g.between(-rank, rank))


@draws(3)
def expand(g: Drawing):
    x = g.tensor(ANY, 0, 5)
    shape = [g.between(2, 4) if dim == 1 and g.chance(0.6) else dim for dim in g.values[x].shape]
    shape = [g.between(1, 4) for _ in range(g.between(0, min(2, 6 - len(shape))))] + shape
    target = [1 if g.chance(0.3) else dim for dim in shape]
    g.node("Expand", [x, g.constant(target, "int64")])


@draws(2)
def tile(g: Drawing):
    x = g.tensor(ANY, 1)
    repeats = [1 if g.chance(0.5) else g.between(0 if g.empty else 1, 3) for _ in range(g.values[x].ndim)]
    g.node("Tile", [x, g.constant(repeats, "int64")])


@draws(4)
def pad(g: Drawing):
    x = g.tensor(ANY if g.chance(0.2) else FLOATS, 1)
    shape = g.values[x].shape
    mode = g.pick(["constant", "constant", "reflect", "edge", "wrap"])
    most = (lambda dim: 3) if mode in ("constant", "edge") else (lambda dim: max(min(dim - 1, 3), 0))
    least = (lambda dim: -min(1, dim - 1)) if mode == "constant" and min(shape, default=0) else (lambda dim: 0)
    pads = [[0 if g.chance(0.5) else g.between(least(d) if g.chance(0.3) else 0, most(d)) for d in shape] for _ in "ab"]
    attributes = {"mode": mode} if mode != "constant" or g.chance(0.5) else {}
    given = [x, g.constant(pads[0] + pads[1], "int64")]
    if mode == "constant" and g.chance(0.6):
        given.append(g.constant(g.pick([0, 1, 2]), str(g.values[x].dtype)))
    if g.opset >= 18 and g.chance(0.3):
        axes = g.axes(len(shape), 1)
        given[1] = g.constant([pads[0][a] for a in axes] + [pads[1][a] for a in axes], "int64")
        given += [""] * (3 - len(given)) + [g.constant(axes, g.pick(["int64", "int32"]))]
    g.node("Pad", given, **attributes)


@draws(2)
def depth_to_space(g: Drawing):
    x = g.tensor(FLOATS, 4, 4)
    if not math.prod(g.values[x].shape):
        raise NotDrawn
    block = 2 if g.chance(0.8) else 3
    n, c, h, w = g.values[x].shape
    if g.chance(0.5):
        if c % (block * block):
            x = g.given(g.numbers((n, block * block * g.between(1, 3), h, w), str(g.values[x].dtype)))
        mode = {"mode": g.pick(["DCR", "CRD"])} if g.chance(0.8) else {}
        g.node("DepthToSpace", [x], blocksize=block, **mode)
    else:
        if h % block or w % block:
            x = g.given(g.numbers((n, c, block * g.between(1, 4), block * g.between(1, 4)), str(g.values[x].dtype)))
        g.node("SpaceToDepth", [x], blocksize=block)


@draws(2)
def where(g: Drawing):
    x = g.tensor(ANY)
    y = g.partner(x)
    g.node("Where", [g.partner(x, kinds=("bool",)), *(g.pick([(x, y), (y, x)]))])


@draws(1)
def trilu(g: Drawing):
    x = g.tensor((*FLOATS, "int32", "int64", "bool"), 2)
    k = [g.constant(g.between(-3, 3), "int64")] if g.chance(0.7) else []
    g.node("Trilu", [x, *k], upper=g.between(0, 1))


@draws(1)
def identity(g: Drawing):
    g.node("Identity", [g.tensor(ANY)])


@draws(0.7)
def range_(g: Drawing):
    """What positions are made of."""
    kind = g.pick(["int64", "int32", "float32"])
    start, step = g.between(-4, 4), g.pick([1, 1, 2, -1, -3])
    count = g.between(0 if g.empty else 1, 12)
    g.node("Range", [g.constant(n, kind) for n in (start, start + step * count, step)])


@draws(0.7)
def filled(g: Drawing):
    """A tensor of one number, in the shape of another one."""
    x = g.tensor(ANY)
    shape = g.node("Shape", [x])
    kind = g.pick(NUMBERS)
    from onnx import numpy_helper

    g.node("ConstantOfShape", [shape], value=numpy_helper.from_array(np.array([g.between(0, 3)], kind)))


@draws(0.5)
def sizes(g: Drawing):
    """A number that is a size, in the arithmetic of the graph."""
    x = g.tensor(ANY)
    size = g.node("Size", [x]) if g.chance(0.3) else g.node("Shape", [x], **({} if g.opset < 15 else {"start": -1}))
    g.node("Cast", [size], to=int(np_kind(g.dtype)))


def np_kind(dtype: str) -> int:
    """ONNX's number of a type."""
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@draws(3)
def cast(g: Drawing):
    """To another type, with numbers that it holds; what has a fraction is cut off."""
    kind = g.pick(ANY)
    low, high = (-np.inf, np.inf) if kind in FLOATS or kind == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
    if kind == "float16":
        low, high = -500, 500

    def holds(value: np.ndarray) -> bool:
        wide = value.astype("f8")
        return bool(np.isfinite(wide).all() and (wide >= low).all() and (wide <= high).all())

    g.node("Cast", [g.tensor(ANY, where=holds)], to=np_kind(kind))
