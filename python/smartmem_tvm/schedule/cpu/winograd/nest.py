# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a Winograd convolution.

    for (picture, block of rows of tiles):
      for each channel:
        tiles[a, channel, t] = ...                           see `into_tiles`
      for each group of filters:
        for each of the (m + 2)^2 points a:
          sums[a, filter, t] = sum over channels of windows[a, filter, channel] * tiles[a, channel, t]
        for each filter:
          out = ...                                          see `out_of_tiles`

One of the loops is parallel: the first one if it is long enough, else those over channels and filters. If there are few
groups of filters, all products come first, parallel over points and panels of filters, and then all results, parallel
over filters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import tirx

from ...core.expressions import split_index
from ...core.nest import PARALLEL, SERIAL, Scope, allocate, block, index
from ..gemm.axis import Axis
from ..gemm.depth import FusedDepth
from ..gemm.epilogue import Stored
from ..gemm.fma_kernel import FmaKernel
from ..gemm.gemm import Gemm
from ..gemm.operands import Reader, in_place
from ..prefetch import UNROLLED, NextPanel
from .into_tiles import IntoTiles
from .out_of_tiles import OutOfTiles
from .part import DTYPE, ByPoints, Part
from .plan import WinogradPlan


class WinogradNest(Part):
    """The emitter of the loop nest of one convolution.

    Parameters
    ----------
    plan : WinogradPlan
    windows : buffer
        The transformed windows: (groups, points, panels, channels, filters of a panel).
    """

    def __init__(self, plan: WinogradPlan, windows):
        super().__init__(plan, Scope())
        self.windows = windows
        self.spread = plan.threads if plan.parallel_inside else 1

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        plan, simplify = self.plan, self.scope.analyzer.simplify

        def task(number):
            place = split_index(tirx.floordiv(number, index(plan.blocks)), plan.windows.outer, self.extents)
            first = tirx.floormod(number, index(plan.blocks)) * index(plan.rows * plan.result)
            return self._block({var: simplify(at) for var, at in place.items()}, simplify(first))

        kind = PARALLEL if plan.parallel_outside else SERIAL
        return self.scope.loop(plan.pictures * plan.blocks, task, "task", kind)

    def _block(self, place: Mapping, first) -> tirx.Stmt:
        """Return the statements for the results of a block from line `first` on, for all filters."""
        plan = self.plan
        tiles = ByPoints.of(plan, "tiles", plan.channels)
        into, length = IntoTiles(plan, self.scope), -(-plan.channels // self.spread)

        def channels(start, count):
            return into.channels(place, first, tiles, start, count, length)

        def panels(start, count):
            return self._panels(place, first, tiles, start, count)

        made = self._chunks(plan.channels, length, channels)
        apart = plan.division.apart
        rest = self._apart(place, first, tiles) if apart else self._chunks(plan.panels, plan.together, panels)
        return allocate([tiles.buffer], block(made, rest))

    def _chunks(self, total: int, length: int, body: Callable) -> tirx.Stmt:
        """Return ``body(first, count)`` for chunks of at most `length`, in parallel if the threads share a block."""
        count = -(-total // length)

        def chunk(n):
            start = n * index(length)
            uneven = total > length and total % length
            return body(start, tirx.min(index(length), index(total) - start) if uneven else min(total, length))

        return self.scope.loop(count, chunk, "chunk", PARALLEL if self.spread > 1 and count > 1 else SERIAL)

    def _apart(self, place: Mapping, first, tiles: ByPoints) -> tirx.Stmt:
        """Return all products in parallel, then all results in parallel."""
        plan, panels = self.plan, index(self.plan.panels)
        sums = ByPoints.of(plan, "sums", plan.panels * plan.tile.height)

        def product(number):
            a, panel = tirx.floordiv(number, panels), tirx.floormod(number, panels)
            return self._panel(place, a, (index(0), panel, panels), tiles, sums)

        def result(filter_):
            back = OutOfTiles(plan, self.scope)
            return allocate(list(back.buffers), back.filter(place, first, filter_, filter_, sums))

        products = self.scope.loop(plan.points * plan.panels, product, "product", PARALLEL)
        return allocate([sums.buffer], block(products, self.scope.loop(plan.filters, result, "filter", PARALLEL)))

    def _panels(self, place: Mapping, first, tiles: ByPoints, start, count) -> tirx.Stmt:
        """Return the products and results of `count` panels of filters from `start` on."""
        plan, height = self.plan, self.plan.tile.height
        sums, back = ByPoints.of(plan, "sums", plan.together * height), OutOfTiles(plan, self.scope)

        def point(a):
            def panel(p):
                return self._panel(place, a, (start, p, count), tiles, sums)

            return self.scope.loop(count, panel, "panel", most=plan.together)

        def filter_(g):
            return back.filter(place, first, start * index(height) + g, g, sums)

        products = self.scope.loop(plan.points, point, "a")
        results = self.scope.loop(self._filters(start, count), filter_, "filter", most=plan.together * height)
        return allocate([sums.buffer, *back.buffers], block(products, results))

    def _filters(self, start, count):
        """Return the number of filters of a chunk of panels; the last panel may have fewer."""
        plan, height = self.plan, self.plan.tile.height
        if isinstance(count, int) and plan.panels * height == plan.filters:
            return count * height
        if plan.panels <= plan.together:
            return plan.filters
        return tirx.min(index(plan.together * height), index(plan.filters) - start * index(height))

    def _panel(self, place: Mapping, a, panels: tuple, tiles: ByPoints, sums: ByPoints) -> tirx.Stmt:
        """Return the products of a panel of filters at one point.

        `panels` is the first panel of the chunk, the number of this one in the chunk, and the number of all.
        """
        plan, width, (start, local, count) = self.plan, self.plan.tile.width, panels
        group = index(0)
        for var in plan.windows.groups:
            group = group * index(self.extents[var]) + place[var]
        panel, height = self.scope.analyzer.simplify(start + local), index(plan.tile.height)
        whole, rest = divmod(plan.vectors * self.lanes, width)
        coming = self.coming((group, a, start), local, count, whole + bool(rest))
        micro = FmaKernel(
            *(self.scope, self.lanes, DTYPE),
            in_place(lambda f, c: self.windows[group, a, panel, c, f]),
            Reader(lambda strip, step: lambda j: tiles[a, step.number, strip.first + j]),
            self.depth,
            Stored(lambda value, f, t: sums.store(value, a, local * height + f, t), tirx.const(0, DTYPE)),
            prefetch_ahead=lambda *_: lambda _, strip: coming.of_tile(strip.number),
        )
        strips = [(0, whole, width)] if whole else []
        strips = Axis.whole(*strips, *([(whole * width, 1, rest)] if rest else []))
        return Gemm(self.scope, micro, Axis.whole((0, 1, plan.tile.height)), strips, rows_outside=True).nest()

    def coming(self, first: tuple, local, count, tiles: int) -> NextPanel:
        """Return the panel of windows after the current one, to prefetch.

        Parameters
        ----------
        first : tuple
            Group and point, and number of the first panel of a chunk.
        local, count : int or PrimExpr
            Number of the current panel in the chunk, and number of panels in the chunk.
        tiles : int
            Number of register tiles that share the prefetches.
        """
        plan, simplify, (group, a, start) = self.plan, self.scope.analyzer.simplify, first
        after, count = local + index(1), index(count) if isinstance(count, int) else count
        point, panel = simplify(a + tirx.floordiv(after, count)), simplify(start + tirx.floormod(after, count))
        return NextPanel(
            plan.channels,
            plan.panel,
            tiles,
            min(UNROLLED, plan.channels),
            lambda c, f: self.scope.simplify(self.windows[group, point, panel, c, f]),
        )

    @property
    def depth(self) -> FusedDepth:
        """The loop over all channels."""
        return FusedDepth(self.scope, self.plan.channels, UNROLLED)
