# SPDX-License-Identifier: Apache-2.0
"""The predicted time of a product of bytes on a GPU, beside that of the same product in floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm

from ...ir.half import HALF
from ...ir.packings import QUADS
from ...target import Limits, has_byte_dots
from . import cost
from .gemm.ptx import ELEMENTS, Element, element_of_bytes
from .matmul.matmul_tile import GpuMatmulParams, best_gpu_tile, described
from .matrix.matrix import LEAST
from .matrix.matrix_tile import MatrixParams, Shape, shortest

_SIGNED = element_of_bytes("int8", "int8")
_HALF = 0.5  # cycles of a product in float16 for each in float32 on phones, by definition of their arithmetic in pairs


def bytes_over_floats(target: tvm.target.Target, factors: str) -> Callable[[int, int, int, bool], float] | None:
    """Return a function of the cycles of bytes over those of floats; None without such instructions.

    Its parameters are the rows, columns and depth of a product, and whether it reads windows: without tensor cores
    these are gathered byte by byte, and multiplied as float32.

    Parameters
    ----------
    factors : str
        The type in which floats are multiplied (`Precision.multiplied`). Floats are made of the bytes on the way, so
        they pass through registers.
    """
    matrix = MatrixParams.of(target)
    dots = has_byte_dots(target)
    if matrix is None and not dots:
        return None
    params = GpuMatmulParams.of(Limits.of(target))

    def ratio(rows: int, columns: int, depth: int, windows: bool) -> float:
        floats = _on_cores(rows, columns, depth, matrix, ELEMENTS.get(factors))
        if math.isinf(floats):
            floats = _in_threads(rows, columns, depth, params.of_type(factors))
            floats *= _HALF if factors == HALF and params.limits.half_lanes > 1 else 1
        found = _on_cores(rows, columns, depth, matrix, _SIGNED)
        if math.isinf(found) and dots:
            found = _in_threads(rows, columns, depth if windows else -(-depth // QUADS.numbers), params)
        return found / floats if math.isfinite(floats) else math.inf

    return ratio


def _on_cores(rows: int, columns: int, depth: int, params: MatrixParams | None, element: Element | None) -> float:
    if params is None or element is None or min(rows, columns) < LEAST:
        return math.inf
    held = not element.terms_innermost
    return shortest(Shape(1, rows, columns, depth, held, held), params.multiplying(element, False))


def _in_threads(rows: int, columns: int, depth: int, params: GpuMatmulParams) -> float:
    tile = best_gpu_tile(1, rows, columns, depth, params)
    return math.inf if tile is None else cost.cycles(described(tile, 1, rows, columns, depth, params), params)
