# SPDX-License-Identifier: Apache-2.0
"""Operators on windows of images: convolutions, pools, resizes."""

import numpy as np

from ..drawing import FLOATS, Drawing, NotDrawn
from .arithmetic import scaled
from .table import draws


def image(g: Drawing, kinds=FLOATS) -> str:
    """A tensor with batch, channels and one to three further axes."""
    return g.tensor(kinds, 3, 5, below=100, where=lambda v: v.size > 0)


def windows(g: Drawing, sizes: tuple[int, ...], dilated: bool = True) -> dict:
    """Attributes of windows that fit into an image of these sizes."""
    rank, square = len(sizes), g.between(1, 4)
    kernel = [square if g.chance(0.5) else g.between(1, 4) for _ in sizes]
    found = {"kernel_shape": kernel}
    if g.chance(0.5):
        found["strides"] = [g.between(1, 3) for _ in sizes]
    if dilated and g.chance(0.25):
        found["dilations"] = [g.between(1, 2) for _ in sizes]
    style = g.rng.random()
    if style < 0.5:
        pads = [g.between(0, max(0, min(2, k - 1))) for k in kernel]
        found["pads"] = pads + (pads if g.chance(0.6) else [g.between(0, max(0, min(2, k - 1))) for k in kernel])
    elif style < 0.7:
        found["auto_pad"] = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
        # ONNX Runtime pads as if there were none.
        found.pop("dilations", None)
    pads = found.get("pads", [0] * 2 * rank)
    span = [d * (k - 1) + 1 for k, d in zip(kernel, found.get("dilations", [1] * rank))]
    same = found.get("auto_pad") in ("SAME_UPPER", "SAME_LOWER")
    if not same and any(n + pads[i] + pads[i + rank] < span[i] for i, n in enumerate(sizes)):
        raise NotDrawn
    return found


@draws(7)
def conv(g: Drawing):
    x = image(g)
    count, sizes = g.values[x].shape[1], g.values[x].shape[2:]
    kind = str(g.values[x].dtype)
    attributes = windows(g, sizes)
    group = g.pick([n for n in range(1, count + 1) if count % n == 0]) if g.chance(0.4) else 1
    if group > 1:
        attributes["group"] = group
    out = group * g.between(1, 3) if group > 1 else g.size() or 1
    weight = g.given(g.numbers((out, count // group, *attributes["kernel_shape"]), kind, 10))
    bias = [g.given(g.numbers((out,), kind, 10))] if g.chance(0.6) else []
    y = g.node("Conv", [x, weight, *bias], **attributes)
    scaled(g, y, count // group * int(np.prod(attributes["kernel_shape"])))


@draws(2)
def conv_transpose(g: Drawing):
    x = image(g)
    count, sizes = g.values[x].shape[1], g.values[x].shape[2:]
    kind, rank = str(g.values[x].dtype), len(sizes)
    kernel = [g.between(1, 4) for _ in sizes]
    attributes = {"kernel_shape": kernel}
    strides = [1] * rank
    if g.chance(0.7):
        attributes["strides"] = strides = [g.between(1, 3) for _ in sizes]
    if g.chance(0.2):
        attributes["dilations"] = [g.between(1, 2) for _ in sizes]
    if g.chance(0.4):
        attributes["pads"] = [g.between(0, (k - 1) // 2) for k in kernel] * 2
    elif g.chance(0.2):
        attributes["auto_pad"] = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
    if g.chance(0.2):
        attributes["output_padding"] = [g.between(0, s - 1) for s in strides]
    group = g.pick([n for n in range(1, count + 1) if count % n == 0]) if g.chance(0.3) else 1
    if group > 1:
        attributes["group"] = group
    out = g.between(1, 4)
    weight = g.given(g.numbers((count, out, *kernel), kind, 10))
    bias = [g.given(g.numbers((out * group,), kind, 10))] if g.chance(0.5) else []
    scaled(g, g.node("ConvTranspose", [x, weight, *bias], **attributes), count * int(np.prod(kernel)))


@draws(4)
def pool(g: Drawing):
    op = g.pick(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "GlobalLpPool"])
    x = image(g)
    if op.startswith("Global"):
        g.node(op, [x])
        return
    attributes = windows(g, g.values[x].shape[2:], dilated=op == "MaxPool" or g.opset >= 19)
    # Implementations of LpPool do not agree on how many there are.
    if "auto_pad" not in attributes and g.chance(0.4) and op != "LpPool":
        attributes["ceil_mode"] = 1
    if op == "AveragePool":
        attributes["count_include_pad"] = g.between(0, 1)
    if op == "LpPool":
        attributes["p"] = g.between(1, 3)
    g.node(op, [x], **attributes)


@draws(2)
def resize(g: Drawing):
    # Whether infinity times a weight of 0 is NaN is not specified.
    x = g.tensor(("float32",), 3, 5, where=lambda v: v.size > 0 and np.isfinite(v).all())
    shape = g.values[x].shape
    mode = g.pick(["nearest", "nearest", "linear", "cubic"]) if len(shape) == 4 else g.pick(["nearest", "linear"])
    attributes = {"mode": mode}
    where = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    attributes["coordinate_transformation_mode"] = g.pick(where)
    if mode == "nearest":
        attributes["nearest_mode"] = g.pick(["round_prefer_floor", "floor", "ceil", "round_prefer_ceil"])
    if g.chance(0.5):
        factors = [1.0, 1.0, *(g.pick([1.0, 2.0, 3.0, 0.5]) for _ in shape[2:])]
        if attributes["coordinate_transformation_mode"] == "align_corners":
            # ONNX's corners lie where the scale puts them, ONNX Runtime's where the size does.
            factors = [factor if factor * n % 1 == 0 else 1.0 for factor, n in zip(factors, shape)]
        g.node("Resize", [x, "", g.constant(factors, "float32")], **attributes)
    else:
        sizes = [*shape[:2], *(g.pick([n, 2 * n, n + 1, max(1, n // 2)]) for n in shape[2:])]
        g.node("Resize", [x, "", "", g.constant(sizes, "int64")], **attributes)


@draws(0.5)
def grid_sample(g: Drawing):
    # Whether infinity times a weight of 0 is NaN is not specified here either.
    x = g.tensor(("float32",), 4, 4, where=lambda v: v.size > 0 and np.isfinite(v).all())
    n = g.values[x].shape[0]
    grid = g.rng.uniform(-1.1, 1.1, (n, g.between(1, 6), g.between(1, 6), 2)).astype("f4")
    mode = g.pick(["bilinear", "nearest"]) if g.opset < 20 else g.pick(["linear", "nearest"])
    pad, corners = g.pick(["zeros", "border", "reflection"]), g.between(0, 1)
    # ONNX Runtime divides by the distance of the corners that it reflects between, and gives nan for one number.
    corners = 0 if pad == "reflection" and 1 in g.values[x].shape[2:] else corners
    g.node("GridSample", [x, g.given(grid)], mode=mode, padding_mode=pad, align_corners=corners)
