# SPDX-License-Identifier: Apache-2.0
"""NonMaxSuppression, whose number of selected rows is known only at run time."""

from __future__ import annotations

from tvm import ir, relax, tirx

from smartmem_tvm.frontend.converters.loops import loop, rows_kernel, store, when
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of

_NONE = -1


def non_max_suppression(node: Node) -> relax.Expr:
    """NonMaxSuppression with a known limit of boxes per class.

    Each class of each image is a row of a kernel, which repeatedly takes the box of the highest score (the first of
    equal ones) and drops the boxes that overlap it. A second kernel concatenates the rows, and the result is a view of
    the part that it wrote.
    """
    boxes, scores = node.inputs[:2]
    (batch, count, _), (_, classes, _) = shape_of(boxes), shape_of(scores)
    most = max(0, min(_limit(node), count))
    thresholds = [node.emit(relax.op.reshape(each, [1])) for each in (node.input(3), node.input(4)) if each is not None]
    if node.input(3) is None:
        thresholds.insert(0, constant([0], dtype_of(boxes)))
    has_scores = node.input(4) is not None

    def select(row, read, written) -> None:
        (boxes, scores, overlap), (taken, left, best) = read[:3], written
        with loop(count) as i:
            wanted = scores[(*row, i)] > read[3][0] if has_scores else tirx.const(True, "bool")
            store(left, (*row, i), tirx.Cast("int32", wanted))
        with loop(most) as number:
            store(best, row, tirx.IntImm("int32", _NONE))
            with loop(count) as i, when(left[(*row, i)] != 0):
                before = best[tuple(row)]
                better = scores[(*row, i)] > scores[(*row, tirx.max(before, 0))]
                with when(tirx.any(before == _NONE, better)):
                    store(best, row, tirx.Cast("int32", i))
            chosen = best[tuple(row)]
            store(taken, (*row, number), chosen)
            with when(chosen != _NONE), loop(count) as i:
                drop = tirx.any(i == chosen, _overlap(node, boxes, row[0], i, chosen) > overlap[0])
                kept = tirx.Select(drop, tirx.IntImm("int32", 0), left[(*row, i)])
                store(left, (*row, i), kept)

    sizes = (batch, classes)
    selected = [((*sizes, max(most, 1)), "int32"), ((*sizes, count), "int32"), (sizes, "int32")]
    taken, *_ = rows_kernel(node, "select", sizes, [boxes, scores, *thresholds], selected, select)

    def gather(_, read, written) -> None:
        (taken,), (rows, total) = read, written
        store(total, (0,), tirx.IntImm("int64", 0))
        store(total, (1,), tirx.IntImm("int64", 3))
        with loop(batch) as image, loop(classes) as label, loop(most) as number:
            box = taken[image, label, number]
            with when(box != _NONE):
                for column, value in enumerate((image, label, box)):
                    store(rows, (total[0], column), tirx.Cast("int64", value))
                store(total, (0,), total[0] + 1)

    whole = ((max(1, batch * classes * most), 3), "int64")
    rows, total = rows_kernel(node, "gather", (1,), [taken], [whole, ((2,), "int64")], gather)
    return _cut(node, rows, total)


def _limit(node: Node) -> int:
    if node.input(2) is None:
        return 0
    limit = node.constant(2)
    if limit is None:
        raise ValueError("its max_output_boxes_per_class is known only at run time; make it an initializer")
    return int(limit.reshape(-1)[0])


def _cut(node: Node, rows: relax.Expr, shape: relax.Expr) -> relax.Expr:
    """Return the first rows, whose number is known only at run time."""
    known = node.emit(relax.op.tensor_to_shape(shape))
    selected = tirx.Var("selected", "int64")
    sizes = relax.ShapeExpr([selected, 3])
    node.bb.match_cast(known, relax.ShapeType([selected, tirx.IntImm("int64", 3)]))
    return relax.op.memory.view(rows, sizes)


def _overlap(node: Node, boxes, image: ir.Expr, one: ir.Expr, other: ir.Expr) -> ir.Expr:
    """Return the overlap of two boxes: intersection over union, 0 if one is empty."""
    spans = [_corners(node, boxes, image, each) for each in (one, other)]
    zero = tirx.const(0, boxes.dtype)
    intersection, areas = None, []
    for low, high in ((0, 2), (1, 3)):
        inside = tirx.min(*(each[high] for each in spans)) - tirx.max(*(each[low] for each in spans))
        inside = tirx.max(inside, zero)
        intersection = inside if intersection is None else intersection * inside
    areas = [(each[2] - each[0]) * (each[3] - each[1]) for each in spans]
    union = areas[0] + areas[1] - intersection
    empty = tirx.any(areas[0] <= zero, areas[1] <= zero, union <= zero)
    return tirx.if_then_else(empty, zero, intersection / union)


def _corners(node: Node, boxes, image: ir.Expr, number: ir.Expr) -> list[ir.Expr]:
    """Return the lower and the upper corner of a box."""
    a, b, c, d = (boxes[image, number, column] for column in range(4))
    if node.attrs.get("center_point_box", 0):
        half = tirx.const(0.5, boxes.dtype)
        return [a - c * half, b - d * half, a + c * half, b + d * half]
    return [tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)]


CONVERTERS = {"NonMaxSuppression": non_max_suppression}
