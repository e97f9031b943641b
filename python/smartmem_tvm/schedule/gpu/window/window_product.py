# SPDX-License-Identifier: Apache-2.0
"""A convolution as an implicit GEMM: gathered tiles of both operands (im2col on the fly), register tiles of results.

Slices of a thread block compute sums over parts of the depth at the same time, and add them up through shared memory.
"""

from __future__ import annotations

from math import gcd

from ....ir.half import HALF
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ....target import Limits
from ...core.contraction import Contraction
from ...core.expressions import Walk, largest_divisor
from ...core.nest import Scope
from ..gemm.gathered_operand import GatheredOperand
from ..gemm.prefetched_operand import Deal
from ..gemm.product import MatmulProduct
from ..gemm.simt import Fragment
from ..gemm.simt_slices import SimtSlices
from ..gemm.skeleton import GpuGemm
from ..gemm.staging import Gathered
from ..launch import registers
from ..sums import Sums
from .texels import runs_along_texels
from .window_tiles import ProductTile

_LIMITS = Limits()
# Most terms in shared memory whose products a phone's kernel has unrolled: Mesa's compiler for Adreno 740 needs 11
# instructions of a loop for 32 products in float16 (2026-11-28). With all 36 of a step registers leave 4 waves, not 8.
_UNROLLED = 12


def gathered_product(
    product: MatmulProduct, tile: ProductTile, texels: bool = False, limits: Limits = _LIMITS, window: int = 0
) -> GpuGemm:
    """Return the loop nest of a product in a tile.

    Parameters
    ----------
    texels : bool
        Four neighbouring columns are a texel of the result, which one store writes.
    limits : Limits
        Of the target: the widest vector of float16 arithmetic, and whether it is a phone.
    window : int
        Terms of the sum for one input channel, or for those of a texel; only phones gather by windows.
    """
    scope, contraction, run = Scope(), product.contraction, TEXEL if texels else 1
    results, phone = tile.thread_rows * tile.thread_columns, limits.phone
    if phone and not texels and tile.thread_columns % TEXEL == 0 and results % (tile.slices * TEXEL) == 0:
        run = product.result_run(TEXEL)
    unroll = largest_divisor(tile.depth, _UNROLLED) if phone else 1
    factor, total = product.factor, str(contraction.reduction.accumulator.ty.dtype)
    by = window if phone else 0
    together = gcd(TEXEL, tile.thread_columns)
    # A phone's threads read vectors from shared memory, also where their columns are not written as vectors.
    deal = Deal(tile.threads_across, together) if phone and run == 1 == tile.vector and together > 1 else None
    left, right = (
        GatheredOperand(scope, name, operand, size, tile, factor, *_order(contraction, *order, tile), by, dealt)
        for name, operand, size, order, dealt in (
            ("left_tile", product.left, tile.rows, (contraction.left, contraction.rows), None),
            ("right_tile", product.right, tile.columns, (contraction.right, contraction.columns), deal),
        )
    )
    across = max(tile.vector, run) if deal is None else together
    left_fragment, right_fragment = (
        Fragment(operand, registers(count, factor, name), threads, gcd(count, vector), operand.deal is not None)
        for operand, count, name, threads, vector in (
            (left, tile.thread_rows, "left", tile.threads_down, TEXEL if phone else max(tile.vector, run)),
            (right, tile.thread_columns, "right", tile.threads_across, across),
        )
    )
    halves = factor == HALF
    lanes = limits.half_lanes if halves else 1
    sums = Sums(scope, results, factor, total, "acc", together, lanes, phone and halves, product.add)
    # Threads are numbered along the columns, and each term is a step of a loop.
    fragments = left_fragment, right_fragment
    micro = SimtSlices(scope, tile, sums, *fragments, tile.depth, unroll, tile.threads_across, run=run)
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
