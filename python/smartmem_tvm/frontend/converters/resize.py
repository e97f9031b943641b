# SPDX-License-Identifier: Apache-2.0
"""Resize: by TVM's operator if it is right, otherwise axis by axis with a constant matrix or indices.

Each output number along an axis is a fixed weighted sum of a few input numbers along it. This covers features that
TVM's operator lacks: any axes, sizes that the scales do not give exactly, antialias, exclude_outside, the aspect ratio
policies, crops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of

# The coordinate modes that TVM's operator computes as ONNX does.
_OF_TVM = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")

# Coordinates and rounding by which a whole scale repeats each number as often.
_REPEATS = {("asymmetric", "floor")}
_REPEATS |= {(half, f"round_prefer_{to}") for half in ("half_pixel", "pytorch_half_pixel") for to in ("floor", "ceil")}


@dataclass(frozen=True)
class Axis:
    """The resizing of one axis.

    Attributes
    ----------
    number : int
        The axis.
    size, result : int
        Its size before and after.
    scale : float
        The divisor of coordinates; not exactly ``result / size``.
    start, end : float
        The part that is cropped, in units of the axis.
    """

    number: int
    size: int
    result: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def resize(node: Node) -> relax.Expr:
    """Resize in all forms with constant sizes."""
    x, mode = node.inputs[0], node.text("mode", "nearest")
    coordinates = node.text("coordinate_transformation_mode", "half_pixel" if node.opset > 10 else "asymmetric")
    axes = _axes(node)
    crops = coordinates == "tf_crop_and_resize"
    if all(_stays(axis) for axis in axes):
        return x
    # Of pictures TVM's operator divides by whole numbers, too; otherwise it rounds floats.
    if not (len(axes) == 4 and coordinates == "asymmetric") and mode == "nearest" and _repeats(node, axes, coordinates):
        for axis in axes:
            x = x if _stays(axis) else node.emit(relax.op.repeat(x, axis.result // axis.size, axis.number))
        return x
    if (
        node.opset > 10
        and len(shape_of(x)) in (3, 4, 5)
        and coordinates in _OF_TVM
        and not node.attrs.get("antialias", 0)
        and "axes" not in node.attrs
        and node.text("keep_aspect_ratio_policy", "stretch") == "stretch"
        and all(abs(axis.scale * axis.size - axis.result) < 1e-3 for axis in axes)
        and all(axis.size == axis.result for axis in axes[:2])
        and (coordinates != "align_corners" or all(axis.result > 1 for axis in axes[2:]))
    ):
        # Version 11 has no optional inputs; empty ones are ignored.
        return node.with_inputs(x, *(_said(node, position) for position in range(1, 4))).by_tvm()
    dtype = dtype_of(x)
    if mode != "nearest" and not dtype.startswith(("float", "bfloat")):
        raise ValueError(f"its mode is {mode} and its numbers are {dtype}; convert them to float32 first")
    working = dtype if dtype in ("float32", "float64") or mode == "nearest" else "float32"
    result = x if working == dtype else node.emit(relax.op.astype(x, working))
    outside = np.zeros([1] * len(axes), bool)
    for axis in axes:
        if _stays(axis):
            continue
        places = _places(axis, coordinates)
        if crops:
            beyond = (places < 0) | (places > axis.size - 1)
            outside = outside | beyond.reshape([-1 if each is axis else 1 for each in axes])
        if mode == "nearest":
            index = np.clip(_ROUND[_nearest_mode(node, axis)](places), 0, axis.size - 1)
            result = node.emit(relax.op.take(result, constant(index, "int64"), axis.number))
        else:
            result = _product(node, result, axis.number, _matrix(node, axis, places, mode).astype(working))
    if outside.any():
        value = constant(node.attrs.get("extrapolation_value", 0.0), working)
        result = node.emit(relax.op.where(constant(outside, "bool"), value, result))
    return result if working == dtype else node.emit(relax.op.astype(result, dtype))


def _said(node: Node, position: int) -> relax.Expr | None:
    value = node.constant(position)
    return node.input(position) if value is None or value.size else None


def _nearest_mode(node: Node, axis: Axis) -> str:
    """Return the rounding; version 10 does not define it, so as in ONNX Runtime: ceil to shrink, floor to enlarge."""
    if node.opset > 10:
        return node.text("nearest_mode", "round_prefer_floor")
    return "floor" if axis.scale >= 1 else "ceil"


def _repeats(node: Node, axes: list[Axis], coordinates: str) -> bool:
    """Whether each number along each axis is repeated as often."""
    return all(
        _stays(axis)
        or (axis.scale == axis.result // axis.size > 1 and (coordinates, _nearest_mode(node, axis)) in _REPEATS)
        for axis in axes
    )


def _stays(axis: Axis) -> bool:
    return axis.scale == 1 and axis.size == axis.result and (axis.start, axis.end) == (0, 1)


def upsample(node: Node) -> relax.Expr:
    """Upsample as the equivalent Resize."""
    scales = node.attrs["scales"] if "scales" in node.attrs else node.constant(1)
    if scales is None:
        raise ValueError("its scales are known only at run time; make them an initializer")
    attrs = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    attrs["mode"] = node.attrs.get("mode", b"nearest")
    same = Node(node.bb, "Resize", [node.inputs[0], None, constant(scales, "float32")], attrs, 13, 1)
    return resize(same)


def _axes(node: Node) -> list[Axis]:
    """Return all axes of the input with the node's settings for each."""
    shape, axes = shape_of(node.inputs[0]), node.attrs.get("axes")
    axes = [axis % len(shape) for axis in axes] if axes else list(range(len(shape)))
    region = node.constant(1) if node.opset > 10 else None
    scales = node.constant(2 if node.opset > 10 else 1)
    sizes = node.constant(3)
    if (scales is None or not scales.size) and (sizes is None or not sizes.size):
        raise ValueError("its scales or sizes are known only at run time; make them an initializer")
    of_axis = {axis: {} for axis in range(len(shape))}
    for position, axis in enumerate(axes):
        if sizes is not None and sizes.size:
            of_axis[axis] = {"result": int(sizes[position]), "scale": int(sizes[position]) / shape[axis]}
        else:
            scale = float(scales[position])
            of_axis[axis] = {"result": int(scale * shape[axis] + 1e-6), "scale": scale}
    if sizes is not None and sizes.size and node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        choose = min if node.text("keep_aspect_ratio_policy") == "not_larger" else max
        scale = choose(of_axis[axis]["scale"] for axis in axes)
        of_axis |= {axis: {"result": int(scale * shape[axis] + 0.5), "scale": scale} for axis in axes}
    if node.text("coordinate_transformation_mode") == "tf_crop_and_resize":
        if region is None:
            raise ValueError("its region of interest is known only at run time; make it an initializer")
        for position, axis in enumerate(axes):
            of_axis[axis] |= {"start": float(region[position]), "end": float(region[len(axes) + position])}
    return [
        Axis(number, size, **{"result": size, "scale": 1.0, **of_axis[number]}) for number, size in enumerate(shape)
    ]


def _places(axis: Axis, coordinates: str) -> np.ndarray:
    """Return the coordinate of each output number among the input numbers."""
    x, size, exact = np.arange(axis.result, dtype="float64"), axis.size, axis.scale * axis.size
    half_pixel = (x + 0.5) / axis.scale - 0.5
    if coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and axis.result > 1):
        return half_pixel
    if coordinates == "half_pixel_symmetric":
        return size / 2 * (1 - axis.result / exact) + half_pixel
    if coordinates == "asymmetric":
        return x / axis.scale
    if coordinates == "align_corners":
        return x * (size - 1) / (exact - 1) if exact != 1 else np.zeros_like(x)
    if coordinates == "tf_half_pixel_for_nn":
        return (x + 0.5) / axis.scale
    if coordinates == "tf_crop_and_resize":
        length = axis.end - axis.start
        middle = x * length * (size - 1) / (exact - 1) if exact != 1 else np.full_like(x, length * (size - 1) / 2)
        return middle + axis.start * (size - 1)
    return np.zeros_like(x)  # pytorch_half_pixel of one number


_ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(distance))


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = a * (((d - 5) * d + 8) * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _matrix(node: Node, axis: Axis, places: np.ndarray, mode: str) -> np.ndarray:
    """Return the weight of each input number along an axis in each output number: ``(size, result)``."""
    antialias, exclude = node.attrs.get("antialias", 0), node.attrs.get("exclude_outside", 0)
    narrow = min(axis.scale, 1.0) if antialias else 1.0
    reach = int(np.ceil(2 / narrow)) + 1
    places = np.clip(places, -1, axis.size)  # coordinates further outside are cropped
    taps = np.arange(-1 - reach, axis.size + 1 + reach)
    distance = (taps[:, None] - places[None, :]) * narrow
    weights = _linear(distance) if mode == "linear" else _cubic(distance, node.attrs.get("cubic_coeff_a", -0.75))
    if exclude:
        weights[(taps < 0) | (taps >= axis.size)] = 0
    if exclude or antialias:
        weights /= weights.sum(0, keepdims=True)
    matrix = np.zeros((axis.size, axis.result))
    np.add.at(matrix, np.clip(taps, 0, axis.size - 1), weights)
    return matrix


def _product(node: Node, x: relax.Expr, axis: int, matrix: np.ndarray) -> relax.Expr:
    """Multiply a tensor by a matrix along one axis."""
    last = len(shape_of(x)) - 1
    order = [*(each for each in range(last + 1) if each != axis), axis]
    back = [order.index(each) for each in range(last + 1)]
    moved = x if axis == last else node.emit(relax.op.permute_dims(x, order))
    result = node.emit(relax.op.matmul(moved, constant(matrix, str(matrix.dtype))))
    return result if axis == last else node.emit(relax.op.permute_dims(result, back))


CONVERTERS = {
    "Resize": resize,
    "Upsample": upsample,
}
