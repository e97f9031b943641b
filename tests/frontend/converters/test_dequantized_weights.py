# SPDX-License-Identifier: Apache-2.0
"""Weights that DequantizeLinear makes of any type, by tensor, axis or block, and what reads them."""

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from against_onnxruntime import check, integers
from contrib_draws import Draw
from covering import seeds

F = "float32"
TYPES = [
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int2",
    "uint2",
    "int16",
    "uint16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
]


def quantized(draw: Draw, dtype: str, shape: tuple) -> np.ndarray:
    if dtype.startswith("float"):
        return draw.random.standard_normal(shape).astype(getattr(ml_dtypes, dtype))
    return integers(draw.random, dtype, shape)


def weight(draw: Draw, dtype: str) -> tuple[dict, dict, tuple]:
    """Draw integers, scales and perhaps zero points, and the attributes of their DequantizeLinear."""
    shape = draw.one((128, 64), (67, 96), (64, 130), (2, 67, 33))
    axis, block = draw.size(0, len(shape) - 1), draw.one(8, 16, 32, 40, 64)
    blocks = tuple(-(-size // block) if at == axis else size for at, size in enumerate(shape))
    named = draw.one(axis, axis - len(shape))
    sizes, options = draw.one(
        ((), {}), ((shape[axis],), {"axis": named}), (blocks, {"axis": named, "block_size": block})
    )
    given = {"q": quantized(draw, dtype, shape), "s": (draw.random.random(sizes) * 0.02 + 0.001).astype(F)}
    if dtype not in ("int16", "uint16") and draw.one(True, False):
        given["z"] = quantized(draw, dtype, sizes)
        if dtype.startswith("float"):
            given["z"] = np.zeros_like(given["z"])
    return given, options, shape


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", seeds(1, 4, 20))
def test_drawn_at_random(dtype, seed):
    draw = Draw(seed + 100 * TYPES.index(dtype))
    given, options, shape = weight(draw, dtype)
    nodes, rows = [helper.make_node("DequantizeLinear", list(given), ["w"], **options)], draw.one(1, 3, 12)
    turned = list(range(len(shape)))
    turned[-2:] = turned[:-3:-1]
    nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=turned))
    name, deep, wide = draw.one(("w", *shape[-2:]), ("t", *shape[:-3:-1]))
    use = draw.one("right", "right", "left", "gemm", "tied", "added")
    use = use if len(shape) == 2 or use == "left" else "right"
    inputs = {"x": draw.floats(wide, rows) if use == "left" else draw.floats(rows, deep)}
    if use == "tied":  # a table of rows that is the last weight as well
        inputs = {"i": draw.random.integers(0, shape[0], (1, rows))}
        nodes += [helper.make_node("Gather", ["w", "i"], ["e"]), helper.make_node("MatMul", ["e", "t"], ["y"])]
    elif use == "added":
        nodes += [helper.make_node("MatMul", ["x", name], ["m"]), helper.make_node("ReduceMax", [name], ["b"])]
        nodes.append(helper.make_node("Add", ["m", "b"], ["y"]))
    elif use == "gemm":
        other = {"w": "t", "t": "w"}[name]
        nodes.append(helper.make_node("Gemm", ["x", other], ["y"], transB=1, alpha=draw.one(1.0, 0.5)))
    else:
        nodes.append(helper.make_node("MatMul", [name, "x"] if use == "left" else ["x", name], ["y"]))
    check(nodes, inputs, {"y": F}, given, opset=25, tolerance=3e-6, threads=1)
