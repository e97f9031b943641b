# SPDX-License-Identifier: Apache-2.0
"""A seed -> a case of one operator on windows, every attribute of it drawn, and sometimes what stands around it.

A graph of many operators draws few convolutions, each with what most of them have. Here each case is one of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .drawing import FLOATS, Drawing, NotDrawn

_TRIES = 1000
_PLACES = {1: (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64, 97), 2: (1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 33)}
_PLACES[3] = (1, 1, 2, 3, 4, 5, 6, 7, 9)
_CHANNELS = (1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 24, 31, 32, 48, 64)
_BATCHES = (1, 1, 1, 1, 2, 3, 5)
SINGLE: dict[str, tuple[Callable[[Drawing], str], float]] = {}
"""Name -> the function that draws one operator and returns the name of its result, and how often."""


def _single(weight: float):
    def enter(function: Callable) -> Callable:
        SINGLE[function.__name__.strip("_")] = function, weight
        return function

    return enter


def draw_single(g: Drawing) -> None:
    """One operator of the table, what is before it and what is behind it."""
    names = list(SINGLE)
    likely = np.array([SINGLE[name][1] for name in names])
    for _ in range(_TRIES):
        name = names[int(g.rng.choice(len(names), p=likely / likely.sum()))]
        try:
            return _behind(g, SINGLE[name][0](g))
        except NotDrawn:
            for held in (g.nodes, g.readers, g.values, g.inputs, g.constants):
                held.clear()
    raise NotDrawn(f"nothing of {_TRIES} tries")


# -- what stands around it -------------------------------------------------------------------------------------------


def _behind(g: Drawing, y: str) -> None:
    """Nothing, most of the time; or an element-wise operator, a residual, another order of memory."""
    kind, shape = str(g.values[y].dtype), g.values[y].shape
    if g.chance(0.15) and len(shape) >= 3:
        y = g.node("Transpose", [y], perm=[0, *range(2, len(shape)), 1])
        shape = g.values[y].shape
    if kind not in FLOATS or g.chance(0.6):
        return
    if g.chance(0.4):
        y = g.node("Add", g.pick([(y, x := _given(g, shape, kind)), (x, y)]))
    if g.chance(0.3):
        y = g.node("Mul", [y, _given(g, (shape[1], *[1] * (len(shape) - 2)), kind)])
    if g.chance(0.7):
        g.node(g.pick(["Relu", "Tanh", "Sigmoid", "Abs", "HardSwish", "Neg"]), [y])


def _picture(g: Drawing, kinds=("float32",) * 8 + ("float64", "float16"), channels: int | None = None) -> str:
    """What a window slides over: batch, channels and one to three further axes; as it is, padded, or moved."""
    rank = g.pick([1, 1, 2, 2, 2, 3])
    places = [g.pick(_PLACES[rank])] * rank if g.chance(0.2) else [g.pick(_PLACES[rank]) for _ in range(rank)]
    shape = [g.pick(_BATCHES), channels or g.pick(_CHANNELS), *places]
    while np.prod(shape) > g.limit:
        shape[int(np.argmax(shape))] //= 2
    kind = g.pick(kinds)
    if g.chance(0.15):  # its channels lie innermost
        x = _given(g, (shape[0], *shape[2:], shape[1]), kind)
        return g.node("Transpose", [x], perm=[0, rank + 1, *range(1, rank + 1)])
    x = _given(g, tuple(shape), kind)
    if g.chance(0.1) and kind in FLOATS:
        pads = [0, 0, *(g.between(0, 2) for _ in places), 0, 0, *(g.between(0, 2) for _ in places)]
        return g.node("Pad", [x, g.constant(pads, "int64"), g.constant(g.pick([0, 0, 1.5]), kind)])
    return g.node("Relu", [x]) if g.chance(0.1) and kind in FLOATS else x


def _given(g: Drawing, shape: tuple[int, ...], kind: str) -> str:
    return g.given(g.numbers(shape, kind, 4.0), inputs=1.0)


# -- attributes ------------------------------------------------------------------------------------------------------


def _some(g: Drawing, rank: int, draw: Callable[[], int]) -> list[int]:
    """For each axis one, half of the time the same."""
    return [draw()] * rank if g.chance(0.4) else [draw() for _ in range(rank)]


def _kernel(g: Drawing, sizes: tuple[int, ...]) -> list[int]:
    """Kernels of one place, small ones, as large as the picture, and larger."""

    def one(size: int) -> int:
        return g.pick([1, 1, 2, 3, 3, 3, 4, 5, g.between(1, 7), size, size + 1 if size < 9 else 2])

    return _some(g, len(sizes), lambda: one(g.pick(sizes))) if g.chance(0.5) else [one(size) for size in sizes]


def _steps(g: Drawing, rank: int, most: int, none: float) -> list[int] | None:
    return None if g.chance(none) else _some(g, rank, lambda: g.pick([1, 2, 2, 3, g.between(1, most)]))


def _window(g: Drawing, sizes: tuple[int, ...], pool: bool = False, dilated: bool = True) -> dict:
    """Kernel, strides, dilations and padding: an attribute that is not there among them.

    Padding of a pool is less than its kernel, or some of its windows would have nothing in them.
    """
    rank, kernel = len(sizes), _kernel(g, sizes)
    found = {"kernel_shape": kernel, "strides": _steps(g, rank, 5, 0.3)}
    found["dilations"] = _steps(g, rank, 3, 0.5) if dilated else None
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, found["dilations"] or [1] * rank)]
    most = [k - 1 for k in kernel] if pool else [max(2, each) for each in reach]
    style = g.rng.random()
    if style < 0.15:
        found["auto_pad"] = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
        if found["auto_pad"].startswith("SAME") and pool:
            found["dilations"] = None  # ONNX Runtime pads as if there were none
    elif style < 0.75:
        found["pads"] = [g.between(0, min(n, g.pick([1, 2, 9]))) for n in most * 2]
    return {name: value for name, value in found.items() if value is not None}


def _groups(g: Drawing, channels: int) -> tuple[int, int]:
    """Groups and results of each: one group, a channel each, with multipliers, and what is in between."""
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    groups = g.pick([1, 1, channels, channels, g.pick(divisors)])
    return groups, g.pick([1, 1, 2, 3, 4, 5, 8]) if groups > 1 else g.pick(_CHANNELS)


def _weights(g: Drawing, shape: tuple[int, ...], kind: str) -> str:
    if np.prod(shape) > 10 * g.limit:
        raise NotDrawn
    return g.given(g.numbers(shape, kind, 2.0), inputs=0.3)


def _bias(g: Drawing, count: int, kind: str) -> list[str]:
    return [_weights(g, (count,), kind)] if g.chance(0.5) else []


# -- operators -------------------------------------------------------------------------------------------------------


@_single(10)
def conv(g: Drawing) -> str:
    x = _picture(g)
    value = g.values[x]
    channels, kind = value.shape[1], str(value.dtype)
    attributes = _window(g, value.shape[2:])
    groups, each = _groups(g, channels)
    weight = _weights(g, (groups * each, channels // groups, *attributes["kernel_shape"]), kind)
    if g.chance(0.2):
        del attributes["kernel_shape"]
    return g.node("Conv", [x, weight, *_bias(g, groups * each, kind)], group=groups, large=True, **attributes)


@_single(6)
def conv_transpose(g: Drawing) -> str:
    x = _picture(g)
    value = g.values[x]
    channels, kind, rank = value.shape[1], str(value.dtype), value.ndim - 2
    attributes = _window(g, value.shape[2:])
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    if g.chance(0.4):
        attributes["output_padding"] = [g.between(0, max(s, d) - 1) for s, d in zip(strides, dilations)]
    if g.chance(0.5) and "pads" not in attributes:
        reach = [d * (k - 1) + 1 for k, d in zip(attributes["kernel_shape"], dilations)]
        whole = [s * (n - 1) + r for s, n, r in zip(strides, value.shape[2:], reach)]
        attributes["output_shape"] = [max(1, n - g.between(0, 3)) for n in whole]
    groups, each = _groups(g, channels)
    weight = _weights(g, (channels, each, *attributes["kernel_shape"]), kind)
    bias = _bias(g, groups * each, kind)
    return g.node("ConvTranspose", [x, weight, *bias], group=groups, large=True, **attributes)


@_single(5)
def max_pool(g: Drawing) -> str:
    x = _picture(g, ("float32",) * 6 + ("float64", "float16", "int8", "uint8"))
    attributes = _window(g, g.values[x].shape[2:], pool=True)
    if g.chance(0.5):
        attributes["ceil_mode"] = g.between(0, 1)
    if g.chance(0.2):
        return g.node("MaxPool", [x], 2, storage_order=g.between(0, 1), **attributes)[0]
    return g.node("MaxPool", [x], **attributes)


@_single(5)
def average_pool(g: Drawing) -> str:
    x = _picture(g)
    attributes = _window(g, g.values[x].shape[2:], pool=True, dilated=g.opset >= 19)
    if g.chance(0.5):
        attributes["ceil_mode"] = g.between(0, 1)
    if g.chance(0.6):
        attributes["count_include_pad"] = g.between(0, 1)
    return g.node("AveragePool", [x], **attributes)


@_single(2)
def lp_pool(g: Drawing) -> str:
    x = _picture(g)
    attributes = _window(g, g.values[x].shape[2:], pool=True, dilated=g.opset >= 18)
    if g.opset >= 18 and g.chance(0.4):
        attributes["ceil_mode"] = g.between(0, 1)
    return g.node("LpPool", [x], p=g.between(1, 3), large=True, **attributes)


@_single(1)
def global_pool(g: Drawing) -> str:
    op = g.pick(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    return g.node(op, [_picture(g)], large=True, **({"p": g.between(1, 3)} if op == "GlobalLpPool" else {}))


@_single(0.7)
def max_unpool(g: Drawing) -> str:
    """A pool and its inverse."""
    x = _picture(g, ("float32", "float64"))
    attributes = _window(g, g.values[x].shape[2:], pool=True, dilated=False)
    attributes.pop("auto_pad", None)
    y, where = g.node("MaxPool", [x], 2, **attributes)
    stated = [g.constant(g.values[x].shape, "int64")] if g.chance(0.2) else []
    return g.node("MaxUnpool", [y, where, *stated], **attributes)


@_single(1.5)
def integer_conv(g: Drawing) -> str:
    """Convolutions of bytes: into 32 bits, or into bytes again."""
    x = _picture(g, ("uint8", "int8"))
    value = g.values[x]
    attributes, kind = _window(g, value.shape[2:]), str(value.dtype)
    groups, each = _groups(g, value.shape[1])
    shape = (groups * each, value.shape[1] // groups, *attributes["kernel_shape"])
    weight = _weights(g, shape, g.pick(["int8", "uint8"]))
    zeros = [g.constant(g.between(0, 3), kind), g.constant(0, str(g.values[weight].dtype))]
    if g.chance(0.5):
        return g.node("ConvInteger", [x, weight, *(zeros if g.chance(0.7) else [])], group=groups, **attributes)
    scales = [g.constant(s, "float32") for s in (0.1, 0.05, 0.3)]
    zeros.append(g.constant(g.between(0, 3), kind))
    given = [x, scales[0], zeros[0], weight, scales[1], zeros[1], scales[2], zeros[2]]
    bias = [_weights(g, (groups * each,), "int32")] if g.chance(0.5) else []
    return g.node("QLinearConv", [*given, *bias], group=groups, **attributes)


@_single(0.7)
def col2im(g: Drawing) -> str:
    """Windows as columns added up into a picture."""
    rank = g.pick([1, 2, 2, 3])
    sizes = [g.pick(_PLACES[3]) for _ in range(rank)]
    window = _window(g, tuple(sizes))
    window.pop("auto_pad", None)
    kernel, (strides, dilations) = window["kernel_shape"], ([1] * rank, [1] * rank)
    strides, dilations = window.get("strides", strides), window.get("dilations", dilations)
    pads = window.get("pads", [0] * 2 * rank)
    places = [
        (n + pads[i] + pads[i + rank] - d * (k - 1) - 1) // s + 1
        for i, (n, k, s, d) in enumerate(zip(sizes, kernel, strides, dilations))
    ]
    if min(places) < 1:
        raise NotDrawn
    x = _given(g, (g.pick(_BATCHES), g.pick((1, 2, 3, 5)) * int(np.prod(kernel)), int(np.prod(places))), "float32")
    del window["kernel_shape"]
    return g.node("Col2Im", [x, g.constant(sizes, "int64"), g.constant(kernel, "int64")], large=True, **window)
