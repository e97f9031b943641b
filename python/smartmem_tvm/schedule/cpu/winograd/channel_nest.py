# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a convolution by transformed tiles whose channels lie innermost, in the image and in the result.

    for (picture, block of rows of tiles):
      for each tile t:
        tiles[a, t, channels] = (B' d B)[a]                  vectors of channels, read where they lie
      for each group of panels of filters:
        for each of the (m + 2)^2 points a:
          sums[a, t, filters] = sum over c of tiles[a, t, c] * windows[a, panel, c, filters]
        for each tile t:
          out = finish((A' sums A)[i, j])                    vectors of filters

Tiles reach beyond the last line and column where these are no multiple of m: what they read there are other elements,
and what comes of those is not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import tirx

from ....ir.kernel import substitute
from ...core.expressions import has_select, split_index
from ...core.nest import PARALLEL, SERIAL, allocate, block, index, scratch, store
from ..accumulators import Accumulators
from ..tile import row_tiles
from .nest import WinogradNest
from .part import DTYPE, ByPoints
from .transforms import WINDOW, by_columns, by_rows


class ChannelNest(WinogradNest):
    """Makes the nest of one convolution; parameters as of `WinogradNest`."""

    def _block(self, place: Mapping, first) -> tirx.Stmt:
        plan = self.plan
        tiles = ByPoints.of(plan, "tiles", plan.tiles, plan.pitch)
        into = self._over_tiles(first, lambda t, y, x: self._into(place, t, y, x, tiles))
        whole = plan.filters // plan.panel
        count, rest = divmod(whole, plan.together)

        def chunk(n):
            return self._filters_of(place, first, n * index(plan.together), plan.together, plan.panel, tiles)

        kind = PARALLEL if self.spread > 1 and count > 1 else SERIAL
        chunks = [self.scope.loop(count, chunk, "chunk", kind)] if count else []
        if rest:
            chunks.append(self._filters_of(place, first, index(count * plan.together), rest, plan.panel, tiles))
        if plan.filters % plan.panel:
            chunks.append(self._filters_of(place, first, index(whole), 1, plan.filters % plan.panel, tiles))
        return allocate([tiles.buffer], block(into, *chunks))

    def _over_tiles(self, first, body: Callable, spread: bool = True) -> tirx.Stmt:
        """``body(tile, line, column)`` for all tiles of a block, from their first line and column on."""
        plan, m = self.plan, index(self.plan.result)

        def row(r):
            return self.scope.loop(
                plan.across, lambda s: body(r * index(plan.across) + s, first + r * m, s * m), "tile"
            )

        kind = PARALLEL if spread and self.spread > 1 and plan.rows > 1 else SERIAL
        return self.scope.loop(plan.rows, row, "row", kind)

    def _over_vectors(self, total: int, body: Callable) -> tirx.Stmt:
        """``body(first, lanes)`` for vectors of channels, or filters."""
        whole, rest = divmod(total, self.lanes)
        main = self.scope.loop(whole, lambda v: body(v * index(self.lanes), self.lanes), "v") if whole else None
        return block(main, body(index(whole * self.lanes), rest) if rest else None)

    # -- into tiles ----------------------------------------------------------------------------------------------

    def _into(self, place: Mapping, tile, y, x, tiles: ByPoints) -> tirx.Stmt:
        plan, half = self.plan, scratch([self.plan.size, self.plan.size, self.lanes], DTYPE, "half")
        line, column = self.image.columns
        (channel,), last = plan.windows.channels, [size + WINDOW - 2 for size in plan.sizes]
        reach = (plan.rows * plan.blocks, plan.across)
        over = [count * plan.result > size for count, size in zip(reach, plan.sizes, strict=True)]

        def within(at, dim: int):
            return tirx.min(at, index(last[dim])) if over[dim] else at

        def vectors(first, lanes: int) -> tirx.Stmt:
            def element(i: int, j: int, t):
                at = {line: within(y + index(i), 0), column: within(x + index(j), 1), channel: first + t}
                point = {**place, **{var: index(0) for var in self.image.window}, **at}
                return self.image.load.source[tuple(substitute(each, point) for each in self.image.load.indices)]

            def put(a: int, b: int, t, value):
                return tiles.store(value, index(a * plan.size + b), tile, first + t)

            return self.both(self.into, by_rows, element, half, put, lanes)

        return allocate([half], self._over_vectors(plan.channels, vectors))

    # -- products ------------------------------------------------------------------------------------------------

    def _filters_of(self, place: Mapping, first, start, count: int, width: int, tiles: ByPoints) -> tirx.Stmt:
        """The results of `count` panels from `start` on, of which `width` filters are there."""
        plan = self.plan
        sums = ByPoints.of(plan, "sums", plan.tiles, count * plan.panel)

        def point(a):
            return self.scope.loop(count, lambda p: self._products(a, start + p, p, tiles, sums), "panel")

        products = self.scope.loop(plan.points, point, "a")
        filters, at = (count - 1) * plan.panel + width, self.scope.index(start * index(plan.panel))
        back = self._over_tiles(first, lambda t, y, x: self._back(place, t, (y, x), at, filters, sums), spread=False)
        return allocate([sums.buffer], block(products, back))

    def _products(self, a, panel, local, tiles: ByPoints, sums: ByPoints) -> tirx.Stmt:
        plan, zero = self.plan, index(0)

        def tile(first, height: int) -> tirx.Stmt:
            acc = Accumulators(self.scope, height, plan.panel, self.lanes, DTYPE)

            def add(c):
                return acc.set(lambda i, j, value: value + tiles[a, first + i, c] * self.windows[zero, a, panel, c, j])

            start = acc.set(lambda i, j, _: tirx.const(0, DTYPE))
            spill = acc.each(lambda i, j, value: sums.store(value, a, first + i, local * index(plan.panel) + j))
            return acc.allocate(start, self.scope.loop(plan.channels, add, "c"), spill)

        return block(
            *(
                self.scope.loop(n, lambda t, f=first, h=height: tile(index(f) + t * index(h), h), "strip")
                for first, n, height in row_tiles(plan.tiles, plan.tile.height)
            )
        )

    # -- out of tiles --------------------------------------------------------------------------------------------

    def _back(self, place: Mapping, tile, corner: tuple, start, filters: int, sums: ByPoints) -> tirx.Stmt:
        plan, m = self.plan, self.plan.result
        half = scratch([m, plan.size, self.lanes], DTYPE, "half")
        done = scratch([m, m, self.lanes], DTYPE, "result")
        rows, searched = self.contraction.rows, has_select(self.reduction.finish)

        def vectors(first, lanes: int) -> tirx.Stmt:
            def element(a: int, b: int, t):
                return sums[index(a * plan.size + b), tile, first + t]

            def put(i: int, j: int, t, value):
                return store(done, value, i, j, t)

            def result(i: int, j: int) -> tirx.Stmt:
                where = dict(zip(self.image.columns, (corner[0] + index(i), corner[1] + index(j)), strict=True))

                def one(t):
                    point = {**place, **where, **split_index(start + first + t, rows, self.extents)}
                    return self.scope.simplify(self.reduction.store(done[index(i), index(j), t], point))

                stored = self.scope.loop(lanes, one, "t") if searched else self.vectors(lanes, lanes, one)
                there = [at < index(size) for at, size in zip(where.values(), plan.sizes, strict=True)]
                inside = self.scope.analyzer.simplify(tirx.all(*there))
                return stored if isinstance(inside, tirx.IntImm) else tirx.IfThenElse(inside, stored, None)

            results = [result(i, j) for i in range(m) for j in range(m)]
            return block(self.both(self.back, by_columns, element, half, put, lanes), *results)

        return allocate([half, done], self._over_vectors(filters, vectors))
