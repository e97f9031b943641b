# SPDX-License-Identifier: Apache-2.0
"""Rules for windows on a GPU: convolutions of all kinds and pooling.

    out[n, f, y, x] += D[n, i, y*s + p*d, x*s + q*d] * W[f, i, p, q]       a window: p and q meet y and x in an index

There are two forms. A convolution with many output channels is tiled as an implicit GEMM (`window_product`). If few or
no output channels share an input (depthwise, pooling), a thread slides over neighbours instead (`slide`). A thread
writes whole texels of a texture (`texels`), also for other short reductions.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from math import prod

from tvm import tirx

from ....analysis.row_chain import factors
from ....ir.kernel import Kernel, shape_of
from ....ir.texels import is_texture
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ...core.contraction import Contraction, contraction_of, split_groups
from ...core.decisions import decide, declined, priced
from ...core.expressions import Walk, largest_divisor, memory_order, uses
from ...core.fold_policies import folded, in_proportion
from ...core.reduction import Reduction, reduction_of
from ..gemm.byte_product import for_threads
from ..gemm.product import MatmulProduct
from ..gemm.skeleton import GpuGemm
from ..launch import GpuRule
from .lines import Lines
from .slide import SlideNest
from .texels import goes_in_texels, terms_in_texels, texel_axes
from .window_product import gathered_product
from .window_tiles import (
    GpuWindowParams,
    ProductTile,
    SlideTile,
    product_price,
    product_tile,
    slide_tile,
    slide_tile_by_lines,
    texel_taps,
    without_spills,
)

# Most terms of a window without multiplications (pooling). Chosen: no times of others were kept (2026-11-21).
_FEW_TERMS = 64
_TERMS_OF_A_THREAD = 1024  # most terms of a sum that is written to a texture: assumed on 2026-11-21
_NEIGHBOURS = 16  # elements that neighbouring threads read at least. Chosen: a sector of float16
# Most texels of a thread along the axis on which a window slides. Chosen: 16 results; no times were kept (2026-11-25).
_TEXELS_OF_A_THREAD = 4
# Rows of a phone's products at least; fewer slide. Chosen by Mesa's compiler and the model of accesses for adreno-740
# (2026-11-28, float16): groups of 16 and 32 channels issue in 0.12 to 0.55 of the time, dense convolutions of 64 in 1.2
# to 2.2 times it, with five times the lines from the second level.
_PHONE_ROWS = 33
# Terms of the products of a phone that a thread adds up by itself for a texel of up to four rows or columns. Chosen:
# the least step of a GEMM, whose tiles have 32 columns at least; 4 x 4 of them used a 32nd of what they multiplied.
_NARROW_TERMS = 16
_NO_TEXELS = "its results do not go to the texture by whole texels"


class WindowRule(GpuRule):
    """A rule for GPUs, written as a function from a reduction, with all element-wise work in it, to a nest."""

    sizes = GpuWindowParams

    def prepare(self, kernel: Kernel) -> Kernel | None:
        """Return the kernel with its element-wise stages in its one reduction; None if that grows out of proportion."""
        reductions = sum(bool(stage.reduction) for stage in kernel.stages)
        if reductions != 1:
            return declined(f"{reductions} reductions, not one")
        whole = folded(kernel, in_proportion)
        left = any(s.is_pointwise and not any(s.outputs[0].same_as(o) for o in whole.outputs) for s in whole.stages)
        return declined("an element-wise stage in the reduction would grow out of proportion") if left else whole

    def plan(self, kernel: Kernel, params: GpuWindowParams) -> GpuGemm | SlideNest | None:
        """Return how a folded kernel is tiled, or None."""
        reduction = reduction_of(kernel)
        return declined("not one reduction") if reduction is None else self.slide(reduction, params)

    def emit(self, plan: GpuGemm | SlideNest) -> tirx.Stmt:
        """Return the whole loop nest."""
        return plan.kernel()

    @abstractmethod
    def slide(self, reduction: Reduction, params: GpuWindowParams) -> GpuGemm | SlideNest | None:
        """Return how a reduction is tiled, or None."""


class WindowProduct(WindowRule):
    """The rule for convolutions with many channels that read the same inputs, on a GPU.

    Parameters
    ----------
    tile : ProductTile, optional
        By default the one that `product_tile` chooses.
    """

    def __init__(self, params: GpuWindowParams | None = None, tile: ProductTile | None = None):
        super().__init__(params)
        self.tile = tile

    def slide(self, reduction: Reduction, params: GpuWindowParams) -> GpuGemm | None:
        """Return how a windowed product with enough rows is tiled, or None."""
        product = contraction_of(terms_in_texels(split_groups(reduction)))
        if product is None or not product.rows or not product.columns:
            return declined("no sum of products that has rows and columns")
        if not has_window(product):
            return declined("no operand is read through a window")
        texel = texel_axes(product.reduction, product.columns)
        if texel is None:
            return declined(_NO_TEXELS)
        shared = product.extent(sharing(product))
        least = _PHONE_ROWS if params.limits.phone else params.product_rows
        if self.tile is None and shared < least:
            return declined(f"{shared} rows read the same inputs, fewer than {least}: a window slides")
        multiplied = for_threads(MatmulProduct(product), params.limits, gathered=True)
        params = (params.in_texels() if texel else params).of_type(multiplied.factor)
        batch, rows, columns, depth = multiplied.batch, multiplied.rows, multiplied.columns, multiplied.depth
        window = window_size(product) if depth == product.extent(product.depth) else 1  # quads are of several windows
        left = sharing(product) is not product.rows
        tile = self.tile or product_tile(batch, rows, columns, depth, window, params, left)
        if tile is None:
            return declined("no tile of the candidates is within the limits of the target")
        facts = {"batch": batch, "rows": rows, "columns": columns, "depth": depth, "window": window, **params.facts}
        tile = decide("gpu_window_product", tile, **facts)
        if texel and tile.thread_columns % TEXEL:
            return declined("a thread would write parts of texels")
        priced(lambda: product_price(tile, batch, rows, columns, depth, params))
        return gathered_product(multiplied, tile, bool(texel), params.limits, window)


class WindowSlide(WindowRule):
    """The rule for depthwise and narrow grouped convolutions, and for pooling, on a GPU.

    Parameters
    ----------
    tile : SlideTile, optional
        By default the one that `slide_tile` chooses.
    """

    def __init__(self, params: GpuWindowParams | None = None, tile: SlideTile | None = None):
        super().__init__(params)
        self.tile = tile

    def slide(self, reduction: Reduction, params: GpuWindowParams) -> SlideNest | None:
        """Return how a window whose inputs few results share is tiled, or None."""
        reduction = terms_in_texels(split_groups(reduction))
        order = memory_order(reduction.spatial, reduction.extents, reduction.output, reduction.indices)
        axis, texel = sliding_axis(reduction), texel_axes(reduction, order)
        if axis is None or texel is None:
            return declined("no operand is read through a window" if axis is None else _NO_TEXELS)
        reduction = along_last(reduction, axis)
        product = contraction_of(reduction)
        multiplies = product is not None or (texel and len(factors(reduction.term)) > 1)
        if not multiplies and _terms(reduction) > _FEW_TERMS:
            return declined(f"a sum of {_terms(reduction)} terms that are no products: too long for one thread")
        rows = [v for v in (sharing(product) if product else ()) if v is not axis and v not in texel]
        e = reduction.extents
        together, results = (prod(e[v] for v in vars_) for vars_ in (texel, reduction.spatial))
        down = next((v for v in reversed(order) if v in window_axes(reduction) and v is not axis), None)
        row = rows[-1] if rows else None
        extents = (e[axis], e.get(down, 1), e.get(row, 1))
        order = order if texel else _neighbours_last(reduction, order, axis)
        lines = Lines(reduction, order)
        if self.tile is None and not texel and lines.known:
            tile = slide_tile_by_lines(lines, (axis, down, row), results, params)
        else:
            tile = self.tile or slide_tile(*extents, results, params, together)

        def sizes(tile: SlideTile) -> dict:
            wanted = ((row, tile.rows), (down, tile.down), (axis, tile.across))
            own = {v: largest_divisor(e[v], most) for v, most in wanted if v is not None and most > 1}
            return own | {v: e[v] for v in texel}

        tile = without_spills(tile, lines, sizes(tile), params)
        facts = dict(zip(("across", "down", "rows"), extents, strict=True))
        facts |= {"results": results, "terms": _terms(reduction), "together": together, **params.facts}
        tile = decide("gpu_window_slide", tile, **facts)
        if down is not None and tile.down > tile.across:
            reduction = along_last(reduction, down)
        return SlideNest(reduction, order, sizes(tile), tile.taps, tile.threads, texel)


class TexelReduction(WindowRule):
    """The rule for sums, means and maxima that are stored in a texture: a thread for each texel of results."""

    def slide(self, reduction: Reduction, params: GpuWindowParams) -> SlideNest | None:
        """Return how a reduction is tiled that is no matmul, and short enough for one thread; otherwise None."""
        reduction = terms_in_texels(split_groups(reduction))
        order = memory_order(reduction.spatial, reduction.extents, reduction.output, reduction.indices)
        texel, product = texel_axes(reduction, order), contraction_of(reduction)
        is_matmul = product is not None and product.rows and product.columns
        if not texel:
            return declined("its results do not go to a texture by whole texels")
        if is_matmul and not (params.limits.phone and _is_narrow(product)):
            return declined("it is a matmul")
        if _terms(reduction) > _TERMS_OF_A_THREAD:
            return declined(f"a sum of {_terms(reduction)} terms: too long for one thread")
        sizes = {v: reduction.extents[v] for v in texel}
        results = prod(reduction.extents[v] for v in reduction.spatial)
        facts = {"results": results, "terms": _terms(reduction), **params.facts}
        tile = decide(
            "gpu_texel_reduction", SlideTile(1, 1, 1, texel_taps(reduction, params), params.slide_threads), **facts
        )
        return SlideNest(reduction, order, sizes, tile.taps, tile.threads, texel)


def _is_narrow(product: Contraction) -> bool:
    """Whether a tile of a GEMM would have few results and few terms: a grouped 1 x 1 convolution, most of all."""
    narrow = min(product.extent(product.rows), product.extent(product.columns)) <= TEXEL
    return narrow and product.extent(product.depth) <= _NARROW_TERMS


def has_window(product: Contraction) -> bool:
    """Whether an operand is read through a window."""
    reduction = product.reduction
    shared = [v for v in reduction.spatial if v not in product.batch]
    return any(_meets(index, shared, reduction.reduce) for ld in loads(reduction.term) for index in ld.indices)


def sharing(product: Contraction) -> tuple:
    """Return the iterators of the results that read the same inputs: those that are in no window's index."""
    read = [index for ld in loads(product.right) for index in ld.indices]
    gathered = any(_meets(index, product.columns, product.depth) for index in read)
    return product.rows if gathered else product.columns


def window_axes(reduction: Reduction) -> tuple:
    """Return the spatial iterators that share an index with a reduction iterator, innermost in memory last."""
    found = [
        v
        for ld in loads(reduction.term)
        for i in ld.indices
        if uses(i, reduction.reduce)
        for v in uses(i, reduction.spatial)
    ]
    unique = [v for n, v in enumerate(found) if v not in found[:n]]
    return memory_order(unique, reduction.extents, reduction.output, reduction.indices)


def sliding_axis(reduction: Reduction):
    """Return the iterator along which neighbours share most of a window; None if there is no window.

    For an image it is not the columns if a thread can have as many results along another iterator: neighbouring threads
    take neighbouring columns, because a cache line has texels of several columns.
    """
    product = contraction_of(reduction)
    axes = [v for v in window_axes(reduction) if product is None or v not in product.batch or not product.rows]
    if len(axes) > 1 and _lies_along_columns(reduction, axes[-1]):
        down, across = (largest_divisor(reduction.extents[v], _TEXELS_OF_A_THREAD) for v in axes[-2:])
        return axes[-2] if down >= across and reduction.extents[axes[-2]] > 1 else axes[-1]
    return axes[-1] if axes else None


def _neighbours_last(reduction: Reduction, order: tuple, axis) -> tuple:
    """Return `order` with the iterator of coalesced reads last, if that is another than the window slides along."""
    near = nearest_read(reduction, order, axis)
    return order if near is None else (*(v for v in order if v is not near), near)


def nearest_read(reduction: Reduction, order: tuple, axis):
    """Return the iterator of the results, not `axis`, that is innermost in its inputs; None if it is too short.

    A result is written once, but its inputs are read for each position of a window: coalesced reads matter more. If
    channels are innermost in memory, neighbouring threads read neighbouring channels.
    """
    read = max(loads(reduction.term), key=lambda load: prod(shape_of(load.source)), default=None)
    walk = Walk(reduction.extents)
    near = next((v for v in order if v is not axis and walk.load_stride(read, v) == 1), None)
    return near if near is not None and reduction.extents[near] >= _NEIGHBOURS else None


def _lies_along_columns(reduction: Reduction, axis) -> bool:
    """Whether a window reads only images along an axis, and that axis is their columns."""
    read = [load for load in loads(reduction.term) if any(_meets(i, [axis], reduction.reduce) for i in load.indices)]
    return bool(read) and all(is_texture(load.source) and uses(load.indices[-2], [axis]) for load in read)


def along_last(reduction: Reduction, axis) -> Reduction:
    """Return the same sum with the window's terms along `axis` last: these are unrolled first, and share values."""
    axes = window_axes(reduction)
    met = {v: [a for a in axes if _meet(reduction, a, v)] for v in reduction.reduce}
    window = sorted((v for v in reduction.reduce if met[v]), key=lambda v: any(a.same_as(axis) for a in met[v]))
    in_order = iter(window)
    return replace(reduction, reduce=tuple(next(in_order) if met[v] else v for v in reduction.reduce))


def _meet(reduction: Reduction, axis, term) -> bool:
    return any(_meets(i, [axis], [term]) for load in loads(reduction.term) for i in load.indices)


def window_size(product: Contraction) -> int:
    """Return the number of last terms of the sum in the window of one input channel, or of the channels of a texel."""
    reduction, size = product.reduction, 1
    shared = [v for v in reduction.spatial if v not in product.batch]
    terms = list(reduction.reduce)
    if goes_in_texels(reduction, terms[-1]):
        size = reduction.extents[terms.pop()]
    for var in reversed(terms):
        if not any(_meets(i, shared, [var]) for ld in loads(reduction.term) for i in ld.indices):
            break
        size *= reduction.extents[var]
    return size


def _meets(index, spatial, reduce) -> bool:
    return bool(uses(index, spatial)) and bool(uses(index, reduce))


def _terms(reduction: Reduction) -> int:
    return prod(reduction.extents[v] for v in reduction.reduce)
