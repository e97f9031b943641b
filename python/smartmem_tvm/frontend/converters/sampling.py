# SPDX-License-Identifier: Apache-2.0
"""GridSample: by TVM's operator, with reflection computed here."""

from __future__ import annotations

from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of

_HALVES = ("float16", "bfloat16")


def grid_sample(node: Node) -> relax.Expr | None:
    """GridSample; for padding by reflection, coordinates outside of [-1, 1] are first reflected into it.

    ONNX reflects at -1 and 1, with aligned corners or not. TVM reflects pixels with integer divisions that take minutes
    to compile and divide by zero for an image of one row. For an image of halves TVM returns float32, and for an image
    and a grid of different types it returns the wider type, although it declares another.
    """
    kinds = [dtype_of(each) for each in node.inputs]
    given = kinds[0]
    if given in _HALVES or (len({*kinds}) == 2 and {*kinds} <= {*_HALVES, "float32", "float64"}):
        dtype = "float64" if "float64" in kinds else "float32"
        wide = node.with_inputs(*(astype(node, each, dtype) for each in node.inputs))
        result = grid_sample(wide)
        return relax.op.astype(node.emit(wide.by_tvm() if result is None else result), given)
    if node.text("padding_mode", "zeros") != "reflection":
        return None
    if node.text("mode", "linear") in ("cubic", "bicubic"):
        raise ValueError("its mode is cubic and its padding reflection; use another of one of them")
    picture, grid = node.inputs
    dtype = dtype_of(grid)
    one, two, four = (constant(number, dtype) for number in (1, 2, 4))
    along = node.apply("add", grid, one)
    periods = node.apply("floor", node.apply("divide", along, four))
    within = node.apply("subtract", along, node.apply("multiply", periods, four))
    reflected = node.apply("subtract", one, node.apply("abs", node.apply("subtract", within, two)))
    return node.with_inputs(picture, reflected, padding_mode=b"border").by_tvm()


CONVERTERS = {"GridSample": grid_sample}
