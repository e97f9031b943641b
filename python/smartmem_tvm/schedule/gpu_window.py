# SPDX-License-Identifier: Apache-2.0
"""Windows on a grid of threads: convolutions of all kinds and pooling.

    out[n, f, y, x] += D[n, i, y*s + p*d, x*s + q*d] * W[f, i, p, q]       a window: p and q meet y and x in an index

Two forms. A product with many channels on the side of the weights is tiled like a matmul (`gpu_window_product`); where
few or none share an input, a thread slides over neighbours instead (`gpu_window_slide`).
"""

from __future__ import annotations

from abc import abstractmethod

from tvm import s_tir, tirx
from tvm.target import Target

from ..analysis.kernel import Opaque, parse
from .contraction import Contraction, contraction_of, split_groups
from .expressions import Walk, loads, uses
from .gpu_default import is_gpu
from .gpu_window_nest import folded
from .gpu_window_params import GpuWindowParams, ProductTile, SlideTile, product_tile, slide_tile
from .gpu_window_product import ProductNest
from .gpu_window_slide import SlideNest
from .nest import index_type
from .reduction import Reduction, reduction_of
from .rule import Rule, finished

_FEW_TERMS = 64  # of a window that multiplies nothing: pooling


class WindowRule(Rule):
    """A rule for GPUs, written as a function from a reduction, with all element-wise work in it, to a nest."""

    def __init__(self, params: GpuWindowParams | None = None):
        self.params = params

    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        """Schedule `func`, or None if the target is no GPU or the kernel is of another family."""
        if not is_gpu(target):
            return None
        try:
            kernel = parse(func)
        except Opaque:
            return None
        if sum(bool(stage.reduction) for stage in kernel.stages) != 1:
            return None
        kernel = folded(kernel)
        if kernel is None:
            return None
        types = {it.var.ty.dtype for stage in kernel.stages for it in stage.iters}
        if len(types) != 1:
            return None
        with index_type(str(next(iter(types)))):
            reduction = reduction_of(kernel)
            body = None if reduction is None else self.lower(reduction, self.params or GpuWindowParams.of(target))
            return None if body is None else s_tir.Schedule(finished(func, kernel, body))

    @abstractmethod
    def lower(self, reduction: Reduction, params: GpuWindowParams) -> tirx.Stmt | None:
        """The loop nest of a reduction, or None."""


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

    def lower(self, reduction: Reduction, params: GpuWindowParams) -> tirx.Stmt | None:
        """Schedule a windowed product with enough rows."""
        product = contraction_of(reduction)
        if product is None or not product.rows or not product.columns or not has_window(product):
            return None
        rows, columns, depth = (product.extent(v) for v in (product.rows, product.columns, product.depth))
        if self.tile is None and rows < params.product_rows:
            return None
        batch, window = product.extent(product.batch), window_size(product)
        tile = self.tile or product_tile(batch, rows, columns, depth, window, params)
        return ProductNest(product, tile).body()


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

    def lower(self, reduction: Reduction, params: GpuWindowParams) -> tirx.Stmt | None:
        """Schedule a window whose inputs few results share."""
        reduction = split_groups(reduction)
        axis = sliding_axis(reduction)
        if axis is None:
            return None
        product = contraction_of(reduction)
        rows = [v for v in (product.rows if product else ()) if v is not axis]
        if product is None and _terms(reduction) > _FEW_TERMS:
            return None
        order = tuple(sorted(reduction.spatial, key=lambda v: _distance(reduction, v), reverse=True))
        e = reduction.extents
        results = 1
        for var in reduction.spatial:
            results *= e[var]
        down = next((v for v in reversed(order) if v in window_axes(reduction) and v is not axis), None)
        row = rows[-1] if rows else None
        tile = self.tile or slide_tile(e[axis], e.get(down, 1), e.get(row, 1), results, params)
        wanted = ((row, tile.rows), (down, tile.down), (axis, tile.across))
        sizes = {var: _divisor(e[var], most) for var, most in wanted if var is not None and most > 1}
        return SlideNest(reduction, order, sizes, tile.taps, tile.threads).body()


def windows_rules() -> list[Rule]:
    """Both, in the order in which they are to be asked."""
    return [WindowProduct(), WindowSlide()]


def has_window(product: Contraction) -> bool:
    """Whether an operand is gathered through a window."""
    reduction = product.reduction
    shared = [v for v in reduction.spatial if v not in product.batch]
    return any(_meets(index, shared, reduction.reduce) for ld in loads(reduction.term) for index in ld.indices)


def window_axes(reduction: Reduction) -> list:
    """Spatial iterators that a reduction iterator is added to in an index, those nearest in memory last."""
    found = [
        v
        for ld in loads(reduction.term)
        for i in ld.indices
        if uses(i, reduction.reduce)
        for v in uses(i, reduction.spatial)
    ]
    unique = [v for n, v in enumerate(found) if v not in found[:n]]
    return sorted(unique, key=lambda v: _distance(reduction, v), reverse=True)


def sliding_axis(reduction: Reduction):
    """The iterator along which neighbours share most of a window; None if there is no window."""
    product = contraction_of(reduction)
    axes = [v for v in window_axes(reduction) if product is None or v not in product.batch or not product.rows]
    return axes[-1] if axes else None


def window_size(product: Contraction) -> int:
    """Terms of the sum, last in the order of the weights, that are places in the window of one input channel."""
    reduction, size = product.reduction, 1
    shared = [v for v in reduction.spatial if v not in product.batch]
    for var in reversed(reduction.reduce):
        if not any(_meets(i, shared, [var]) for ld in loads(reduction.term) for i in ld.indices):
            break
        size *= reduction.extents[var]
    return size


def _meets(index, spatial, reduce) -> bool:
    return bool(uses(index, spatial)) and bool(uses(index, reduce))


def _terms(reduction: Reduction) -> int:
    total = 1
    for var in reduction.reduce:
        total *= reduction.extents[var]
    return total


def _distance(reduction: Reduction, var) -> int:
    """Elements of the output between neighbours along `var`."""
    stride = Walk(reduction.extents).stride(reduction.output, reduction.indices, var)
    return abs(stride) if stride is not None else 1 << 62


def _divisor(extent: int, most: int) -> int:
    return max(d for d in range(1, most + 1) if extent % d == 0)
