# SPDX-License-Identifier: Apache-2.0
"""What networks do with several operators, in the shapes at hand."""

import numpy as np

from ..drawing import FLOATS, Drawing, NotDrawn
from .arithmetic import scaled
from .layout import np_kind
from .reduction import reduce
from .table import draws


def _divisor(g: Drawing, size: int) -> int:
    found = [n for n in range(2, size + 1) if size % n == 0]
    if not found:
        raise NotDrawn
    return g.pick(found)


def _reshape(g: Drawing, x: str, *dims: int) -> str:
    return g.node("Reshape", [x, g.constant(dims, "int64")])


@draws(2)
def channel_shuffle(g: Drawing):
    x = g.tensor(FLOATS, 3, 4, where=lambda v: v.size > 0)
    n, c, *rest = g.values[x].shape
    groups = _divisor(g, c)
    apart = _reshape(g, x, n, groups, c // groups, *rest)
    perm = [0, 2, 1, *range(3, 3 + len(rest))]
    _reshape(g, g.node("Transpose", [apart], perm=perm), n, c, *rest)


@draws(2)
def window_partition(g: Drawing):
    """Windows of an image as a batch, as in Swin, and perhaps back."""
    x = g.tensor(FLOATS, 4, 4, where=lambda v: v.size > 0)
    n, h, w, c = g.values[x].shape
    a, b = _divisor(g, h), _divisor(g, w)
    apart = g.node("Transpose", [_reshape(g, x, n, h // a, a, w // b, b, c)], perm=[0, 1, 3, 2, 4, 5])
    y = _reshape(g, apart, -1, a * b, c)
    if g.chance(0.6):
        y = g.node(g.pick(["Relu", "Softmax", "Tanh", "Identity"]), [y])
        apart = g.node("Transpose", [_reshape(g, y, n, h // a, w // b, a, b, c)], perm=[0, 1, 3, 2, 4, 5])
        _reshape(g, apart, n, h, w, c)


@draws(2)
def roll(g: Drawing):
    x = g.tensor(FLOATS, 1, where=lambda v: max(v.shape) > 1)
    for axis in g.axes(g.values[x].ndim, 1)[:2]:
        size = g.values[x].shape[axis]
        cut = g.between(0, size)
        at = g.constant([axis], "int64")
        first = g.node("Slice", [x, g.constant([0], "int64"), g.constant([cut], "int64"), at])
        second = g.node("Slice", [x, g.constant([cut], "int64"), g.constant([size], "int64"), at])
        x = g.node("Concat", [second, first], axis=axis)


@draws(2)
def attention(g: Drawing):
    """Heads cut from one projection or from three, scores, perhaps a mask, and heads joined again."""
    x = g.tensor(FLOATS, 3, 3, below=20, where=lambda v: v.size > 0)
    n, length, width = g.values[x].shape
    kind = str(g.values[x].dtype)
    heads = g.between(1, 4)
    depth = g.pick([1, 2, 3, 4, 5, 8])
    inner = heads * depth
    if g.chance(0.4):
        joint = scaled(g, g.node("MatMul", [x, g.constant(g.numbers((width, 3 * inner), kind, 4))]), width)
        apart = g.node("Transpose", [_reshape(g, joint, n, length, 3, heads, depth)], perm=[2, 0, 3, 1, 4])
        parts = [g.node("Gather", [apart, g.constant(i, "int64")], axis=0) for i in range(3)]
    else:
        flat = [scaled(g, g.node("MatMul", [x, g.constant(g.numbers((width, inner), kind, 4))]), width) for _ in "qkv"]
        parts = [g.node("Transpose", [_reshape(g, p, n, length, heads, depth)], perm=[0, 2, 1, 3]) for p in flat]
    keys = g.node("Transpose", [parts[1]], perm=[0, 1, 3, 2])
    scores = g.node("MatMul", [parts[0], keys])
    scores = g.node(g.pick(["Mul", "Div"]), [scores, g.constant(depth**0.5, kind)])
    if g.chance(0.4):
        mask = np.triu(np.full((length, length), g.pick([-np.inf, -1e4, -100.0]), kind), 1)
        scores = g.node("Add", [scores, g.constant(mask)], large=True)
    y = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), parts[2]])
    _reshape(g, g.node("Transpose", [y], perm=[0, 2, 1, 3]), n, length, inner)


@draws(1.5)
def squeeze_excite(g: Drawing):
    x = g.tensor(FLOATS, 4, 4, below=50, where=lambda v: v.size > 0)
    n, c = g.values[x].shape[:2]
    kind, inner = str(g.values[x].dtype), g.between(1, 8)
    mean = g.node("GlobalAveragePool", [x]) if g.chance(0.5) else reduce(g, "ReduceMean", x, [2, 3], 1)
    if g.chance(0.5):
        low = g.node("Relu", [g.node("Conv", [mean, g.constant(g.numbers((inner, c, 1, 1), kind, 4))])])
        high = g.node("Conv", [low, g.constant(g.numbers((c, inner, 1, 1), kind, 4))])
    else:
        low = g.node("Relu", [g.node("Gemm", [_reshape(g, mean, n, c), g.constant(g.numbers((c, inner), kind, 4))])])
        high = g.node("MatMul", [low, g.constant(g.numbers((inner, c), kind, 4))])
        high = _reshape(g, high, n, c, 1, 1)
    g.node("Mul", [x, g.node(g.pick(["Sigmoid", "HardSigmoid"]), [high])])


@draws(2)
def residual(g: Drawing):
    """A branch that moves numbers away and back again, joined with what it came from."""
    x = g.tensor(FLOATS, 2, below=1e3)
    rank = g.values[x].ndim
    perm = [int(i) for i in g.rng.permutation(rank)]
    y = g.node(g.pick(["Relu", "Tanh", "Sigmoid", "Softmax"]), [g.node("Transpose", [x], perm=perm)])
    y = g.node("Transpose", [y], perm=[int(i) for i in np.argsort(perm)])
    g.node(g.pick(["Add", "Mul", "Sub"]), [x, y])


@draws(1)
def normalization_in_pieces(g: Drawing):
    """A layer normalization as exporters write it."""
    x = g.tensor(FLOATS, 1, below=1e2)
    axes = [-1] if g.chance(0.7) else g.axes(g.values[x].ndim, 1)
    kind = str(g.values[x].dtype)
    centred = g.node("Sub", [x, reduce(g, "ReduceMean", x, axes, 1)])
    square = g.node("Mul", [centred, centred]) if g.chance(0.5) else g.node("Pow", [centred, g.constant(2.0, kind)])
    variance = reduce(g, "ReduceMean", square, axes, 1)
    deviation = g.node("Sqrt", [g.node("Add", [variance, g.constant(1e-2, kind)])])
    y = g.node("Div", [centred, deviation])
    if g.chance(0.7):
        y = g.node("Mul", [y, g.constant(g.numbers(g.values[x].shape[-1:], kind, 3))])
        g.node("Add", [y, g.constant(g.numbers(g.values[x].shape[-1:], kind, 3))])


@draws(1)
def rotary(g: Drawing):
    """Halves swapped, one of them negated, times two tables."""
    x = g.tensor(FLOATS, 2, below=1e2, where=lambda v: v.shape[-1] > 1 and v.shape[-1] % 2 == 0)
    half, kind = g.values[x].shape[-1] // 2, str(g.values[x].dtype)
    first, second = g.node("Split", [x, g.constant([half, half], "int64")], 2, axis=-1)
    other = g.node("Concat", [g.node("Neg", [second]), first], axis=-1)
    table = g.values[x].shape[-2:]
    sides = [g.node("Mul", [each, g.constant(g.numbers(table, kind, 1))]) for each in (x, other)]
    g.node("Add", sides)


@draws(1.5)
def strided_pieces(g: Drawing):
    """Every second row and column, laid side by side, as in Swin's patch merging and YOLO's focus."""
    x = g.tensor(FLOATS, 3, 4, where=lambda v: v.size > 0 and v.shape[1] % 2 == 0 and v.shape[2] % 2 == 0)
    ends, axes, steps = g.constant([2**31 - 1] * 2), g.constant([1, 2]), g.constant([2, 2])
    starts = [(0, 0), (1, 0), (0, 1), (1, 1)]
    g.node("Concat", [g.node("Slice", [x, g.constant(s), ends, axes, steps]) for s in starts], axis=-1)


@draws(0.7)
def there_and_back(g: Drawing):
    """Through a narrower type and back."""
    x = g.tensor(("float32",), below=100)
    y = g.node("Cast", [x], to=np_kind(g.pick(["float16", "int32", "int8", "float64"])))
    if g.chance(0.5) and g.values[y].ndim:
        y = g.node("Transpose", [y])
    g.node("Cast", [y], to=np_kind("float32"))
