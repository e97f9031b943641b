# SPDX-License-Identifier: Apache-2.0
"""What a product of bytes costs on a GPU beside the product of the floats that the bytes stand for."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm.target import Target

from ...ir.packings import QUADS
from ...target import Limits, has_byte_dots
from . import cost
from .gemm.ptx import ELEMENTS, Element, element_of_bytes
from .matmul.matmul_tile import GpuMatmulParams, best_gpu_tile, described
from .matrix.matrix import LEAST
from .matrix.matrix_tile import MatrixParams, Shape, shortest

_SIGNED = element_of_bytes("int8", "int8")


def bytes_over_floats(target: Target, factors: str) -> Callable[[int, int, int], float] | None:
    """Return ``(rows, columns, depth) -> cycles of bytes over cycles of floats``; None without such instructions.

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

    def ratio(rows: int, columns: int, depth: int) -> float:
        both = [
            _on_cores(rows, columns, depth, matrix, ELEMENTS.get(factors)),
            _in_threads(rows, columns, depth, params),
        ]
        quads = _in_threads(rows, columns, -(-depth // QUADS.numbers), params) if dots else math.inf
        whole = _on_cores(rows, columns, depth, matrix, _SIGNED)
        return (whole if math.isfinite(whole) else quads) / (both[0] if math.isfinite(both[0]) else both[1])

    return ratio


def _on_cores(rows: int, columns: int, depth: int, params: MatrixParams | None, element: Element | None) -> float:
    if params is None or element is None or min(rows, columns) < LEAST:
        return math.inf
    held = not element.terms_innermost
    return shortest(Shape(1, rows, columns, depth, held, held), params.multiplying(element, False))


def _in_threads(rows: int, columns: int, depth: int, params: GpuMatmulParams) -> float:
    tile = best_gpu_tile(1, rows, columns, depth, params)
    return math.inf if tile is None else cost.cycles(described(tile, 1, rows, columns, depth, params), params)
