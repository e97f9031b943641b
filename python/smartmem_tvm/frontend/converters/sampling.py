# SPDX-License-Identifier: Apache-2.0
"""GridSample: TVM's operator, but for a picture that reflects in an axis of one number."""

from __future__ import annotations

from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, shape_of


def grid_sample(node: Node) -> relax.Expr | None:
    """GridSample; TVM takes a coordinate modulo ``size - 1`` where corners are aligned, which may be 0.

    One row reflects into itself, as two equal rows do.
    """
    picture = node.inputs[0]
    single = [axis for axis, size in enumerate(shape_of(picture)) if axis > 1 and size == 1]
    if not single or not node.attrs.get("align_corners", 0) or node.text("padding_mode", "zeros") != "reflection":
        return None
    for axis in single:
        picture = node.emit(relax.op.concat([picture, picture], axis))
    return node.with_inputs(picture, node.inputs[1]).by_tvm()


CONVERTERS = {"GridSample": grid_sample}
