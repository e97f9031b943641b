# SPDX-License-Identifier: Apache-2.0
"""RoiAlign: the mean or maximum of interpolated values of an image at points within boxes."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import relax, te, tirx

from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of

_HALVES = ("float16", "bfloat16")


def roi_align(node: Node) -> relax.Expr:
    """RoiAlign, as ONNX Runtime computes it.

    TVM's converter subtracts half a pixel before it scales boxes. Its operator takes the maximum of interpolated
    values, while ONNX takes the maximum of the four weighted neighbours, and it writes nothing for a box without
    points.
    """
    dtype = dtype_of(node.inputs[0])
    wide = "float32" if dtype in _HALVES else dtype
    half_pixel = node.text("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "") == "half_pixel"
    x, boxes = (astype(node, each, wide) for each in node.inputs[:2])
    image = astype(node, node.inputs[2], "int32")
    corners = node.apply("multiply", boxes, constant(node.attrs.get("spatial_scale", 1.0), wide))
    if half_pixel:
        corners = node.apply("subtract", corners, constant(0.5, wide))
    size = (node.attrs.get("output_height", 1), node.attrs.get("output_width", 1))
    ratio, mean = node.attrs.get("sampling_ratio", 0), node.text("mode", "avg") != "max"
    given = (x, corners, image, size, ratio, not half_pixel, mean)
    result = node.bb.emit_te(_roi_align, *given, primfunc_name_hint="roi_align")
    return relax.op.astype(result, dtype) if wide != dtype else result


def _roi_align(
    x: te.Tensor,
    corners: te.Tensor,
    image: te.Tensor,
    size: tuple[int, int],
    ratio: int,
    at_least_one: bool,
    mean: bool,
) -> te.Tensor:
    """Return the value of each cell of each box; 0 for a box without points.

    Parameters
    ----------
    corners
        Boxes as x, y, x, y, in pixels.
    ratio
        Points of a cell along each axis; 0 for one for each pixel.
    at_least_one
        Whether boxes are at least a pixel wide and high.
    """
    dtype = x.dtype

    def cells(box, axis: int) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
        """Return the width of a cell along rows (axis 0) or columns (1), and its number of points."""
        length = corners[box, 3 - axis] - corners[box, 1 - axis]
        width = (te.max(length, tirx.const(1, dtype)) if at_least_one else length) / tirx.const(size[axis], dtype)
        return width, tirx.const(ratio, "int32") if ratio > 0 else te.ceil(width).astype("int32")

    def cell(box, channel, *place) -> tirx.PrimExpr:
        (height, rows), (width, columns) = (cells(box, axis) for axis in range(2))
        none = tirx.any(rows <= 0, columns <= 0)
        # At least one iteration: an empty loop would write nothing.
        rows, columns = (te.max(count, tirx.const(1, "int32")) for count in (rows, columns))
        turns = [te.reduce_axis((0, count)) for count in (rows, columns)]
        at = [
            corners[box, 1 - axis]
            + place[axis].astype(dtype) * step
            + (turns[axis].var.astype(dtype) + tirx.const(0.5, dtype)) * step / count.astype(dtype)
            for axis, (step, count) in enumerate(((height, rows), (width, columns)))
        ]
        shares = [x[image[box], channel, r, c] * (a * b) for (r, a) in around(at, 0) for (c, b) in around(at, 1)]
        value = sum(shares[1:], shares[0]) if mean else te.max(te.max(*shares[:2]), te.max(*shares[2:]))
        outside = [tirx.any(at[axis] < tirx.const(-1, dtype), at[axis] > edge(axis)) for axis in range(2)]
        value = tirx.if_then_else(tirx.any(none, *outside), tirx.const(0, dtype), value)
        if mean:
            return te.sum(value / (rows * columns).astype(dtype), axis=turns)
        return te.max(value, axis=turns)

    def edge(axis: int) -> tirx.PrimExpr:
        return tirx.const(int(x.shape[2 + axis]), dtype)

    def around(at, axis: int) -> Iterator[tuple[tirx.PrimExpr, tirx.PrimExpr]]:
        """Yield index and weight of the two neighbours of a place along an axis."""
        last = int(x.shape[2 + axis]) - 1
        inside = te.min(te.max(at[axis], tirx.const(0, dtype)), tirx.const(last, dtype))
        low = te.max(te.floor(inside).astype("int32"), tirx.const(0, "int32"))  # of NaN, too
        share = inside - low.astype(dtype)
        yield low, tirx.const(1, dtype) - share
        yield te.min(low + 1, tirx.const(last, "int32")), share

    shape = (corners.shape[0], x.shape[1], *size)
    return te.compute(shape, cell, name="roi_align", tag="pool,roi_align_nchw")


CONVERTERS = {"RoiAlign": roi_align}
