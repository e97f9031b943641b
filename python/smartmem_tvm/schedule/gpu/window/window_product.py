# SPDX-License-Identifier: Apache-2.0
"""A convolution as an implicit GEMM: gathered tiles of both operands (im2col on the fly), register tiles of results.

Slices of a thread block compute sums over parts of the depth at the same time, and add them up through shared memory.
"""

from __future__ import annotations

from math import gcd

from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ...core.contraction import Contraction
from ...core.expressions import Walk
from ...core.nest import Scope
from ..gemm.gathered_operand import GatheredOperand
from ..gemm.product import MatmulProduct
from ..gemm.simt import Fragment
from ..gemm.simt_slices import SimtSlices
from ..gemm.skeleton import GpuGemm
from ..gemm.staging import Gathered
from ..launch import registers
from ..sums import Sums, product_type
from .texels import runs_along_texels
from .window_tiles import ProductTile


def gathered_product(contraction: Contraction, tile: ProductTile, texels: bool = False, lanes: int = 1) -> GpuGemm:
    """Return the loop nest of a contraction in a tile.

    Parameters
    ----------
    texels : bool
        Four neighbouring columns are a texel of the result, which one store writes.
    lanes : int
        Widest vector of float16 arithmetic, in elements.
    """
    scope, product, run = Scope(), MatmulProduct(contraction), TEXEL if texels else 1
    factor, total = product_type(contraction), str(contraction.reduction.accumulator.ty.dtype)
    left, right = (
        GatheredOperand(scope, name, operand, size, tile, factor, *_order(contraction, value, iterators, tile))
        for name, operand, size, value, iterators in (
            ("left_tile", product.left, tile.rows, contraction.left, contraction.rows),
            ("right_tile", product.right, tile.columns, contraction.right, contraction.columns),
        )
    )
    results, together = tile.thread_rows * tile.thread_columns, gcd(TEXEL, tile.thread_columns)
    left_fragment, right_fragment = (
        Fragment(operand, registers(count, factor, name), threads, gcd(count, max(tile.vector, run)))
        for operand, count, name, threads in (
            (left, tile.thread_rows, "left", tile.threads_down),
            (right, tile.thread_columns, "right", tile.threads_across),
        )
    )
    sums = Sums(scope, results, factor, total, "acc", together, lanes)
    # Threads are numbered along the columns, and each term is a step of a loop.
    micro = SimtSlices(scope, tile, sums, left_fragment, right_fragment, tile.depth, 1, tile.threads_across, run=run)
    return GpuGemm(scope, product, tile, Gathered(left, right, -(-product.depth // (tile.depth * tile.slices))), micro)


def _order(contraction: Contraction, value, iterators: tuple, tile: ProductTile) -> tuple[tuple[int, int], bool]:
    """Return (lanes and terms of a texel of an operand, whether only its terms are innermost in memory)."""
    extents, depth = contraction.reduction.extents, contraction.depth
    walk = Walk(extents)
    near = any(walk.load_stride(load, v) == 1 for load in loads(value) for v in iterators[-1:])
    deep = any(walk.load_stride(load, v) == 1 for load in loads(value) for v in depth)
    if runs_along_texels(value, iterators[-1], extents):
        return (TEXEL, 1), deep and not near
    in_depth = runs_along_texels(value, depth[-1], extents) and tile.depth % TEXEL == 0
    return (1, TEXEL) if in_depth else (1, 1), deep and not near
