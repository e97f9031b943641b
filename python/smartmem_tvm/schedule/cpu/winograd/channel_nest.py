# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a Winograd convolution whose channels are innermost, in the image and in the result.

    for (picture, block of rows of tiles):
      for each tile t:
        tiles[a, t, channels] = (B' d B)[a]                  vectors of channels, read in place
      for each part of the rows, each group of panels of filters:
        for each of the (m + 2)^2 points a:
          sums[a, t, filters] = sum over c of tiles[a, t, c] * windows[a, panel, c, filters]
        for each tile t:
          out = finish((A' sums A)[i, j])                    vectors of filters

If the lines or columns are no multiple of m, tiles extend beyond the last one. They read other elements there, and the
results are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import tirx

from ....ir.blends import branches
from ....ir.kernel import substitute
from ...core.expressions import split_index
from ...core.nest import PARALLEL, SERIAL, allocate, block, index, scratch, store
from ..gemm.axis import Axis
from ..gemm.epilogue import Stored
from ..gemm.fma_kernel import FmaKernel
from ..gemm.gemm import Gemm
from ..gemm.operands import Reader, in_place
from ..prefetch import NextPanel
from ..tile import row_tiles
from .nest import WinogradNest
from .part import DTYPE, ByPoints
from .transforms import WINDOW, by_columns, by_rows


class ChannelNest(WinogradNest):
    """The emitter of the loop nest of one convolution; its parameters are those of `WinogradNest`."""

    def _block(self, place: Mapping, first) -> tirx.Stmt:
        plan = self.plan
        tiles = ByPoints.of(plan, "tiles", plan.tiles, plan.pitch)
        whole = plan.filters // plan.panel
        count, rest = divmod(whole, plan.together)

        def task(number):
            part, n = tirx.floordiv(number, index(count)), tirx.floormod(number, index(count))
            chunk = self.scope.analyzer.simplify(n * index(plan.together))
            return self._filters_of(place, first, (part, chunk), plan.together, plan.panel, tiles)

        kind = PARALLEL if self.spread > 1 else SERIAL
        chunks = [self.scope.loop(plan.parts * count, task, "task", kind)] if count else []
        # If the threads divide parts among them, all panels are full, and so are all groups of panels.
        start = index(count * plan.together)
        if rest:
            chunks.append(self._filters_of(place, first, (index(0), start), rest, plan.panel, tiles))
        if plan.filters % plan.panel:
            width = plan.filters % plan.panel
            chunks.append(self._filters_of(place, first, (index(0), index(whole)), 1, width, tiles))
        return allocate([tiles.buffer], block(self._all_into(place, first, tiles), *chunks))

    def _over_tiles(self, first, rows: int, body: Callable) -> tirx.Stmt:
        """Return ``body(tile, line, column)`` for all tiles of some rows, with their first line and column."""
        plan, m = self.plan, index(self.plan.result)

        def row(r):
            return self.scope.loop(
                plan.across, lambda s: body(r * index(plan.across) + s, first + r * m, s * m), "tile"
            )

        return self.scope.loop(rows, row, "row")

    def _over_vectors(self, total: int, body: Callable) -> tirx.Stmt:
        """Return ``body(first, lanes)`` for vectors of channels, or of filters."""
        whole, rest = divmod(total, self.lanes)
        main = self.scope.loop(whole, lambda v: body(v * index(self.lanes), self.lanes), "v") if whole else None
        return block(main, body(index(whole * self.lanes), rest) if rest else None)

    # -- into tiles ----------------------------------------------------------------------------------------------

    def _all_into(self, place: Mapping, first, tiles: ByPoints) -> tirx.Stmt:
        """Return all tiles of a block; if threads share a block, a task has one tile, or some of its channels."""
        plan, simplify = self.plan, self.scope.analyzer.simplify
        if self.spread == 1:
            whole = (index(0), plan.channels)
            return self._over_tiles(first, plan.rows, lambda t, y, x: self._into(place, t, (y, x), whole, tiles))
        pieces = self._pieces(self.spread * plan.params.tasks_per_core)

        def task(number):
            tile, piece = (simplify(each(number, index(pieces))) for each in (tirx.floordiv, tirx.floormod))
            y, x = (simplify(each(tile, index(plan.across))) for each in (tirx.floordiv, tirx.floormod))
            corner = first + y * index(plan.result), x * index(plan.result)
            size = plan.channels // pieces
            return self._into(place, tile, corner, (piece * index(size), size), tiles)

        return self.scope.loop(plan.tiles * pieces, task, "task", PARALLEL)

    def _pieces(self, tasks: int) -> int:
        """Return into how many pieces of whole vectors a tile's channels are cut, for at least `tasks` tasks."""
        vectors, rest = divmod(self.plan.channels, self.lanes)
        pieces = [n for n in range(1, vectors + 1) if vectors % n == 0] if not rest else [1]
        return next((n for n in pieces if n * self.plan.tiles >= tasks), pieces[-1])

    def _into(self, place: Mapping, tile, corner: tuple, piece: tuple, tiles: ByPoints) -> tirx.Stmt:
        """Return the transform of a tile; `piece` is the first and the number of its channels."""
        plan, half = self.plan, scratch([self.plan.size, self.plan.size, self.lanes], DTYPE, "half")
        line, column = self.image.columns
        channels, last = plan.windows.channels, [size + WINDOW - 2 for size in plan.sizes]
        reach = (plan.rows * plan.blocks, plan.across)
        over = [count * plan.result > size for count, size in zip(reach, plan.sizes, strict=True)]

        def within(at, dim: int):
            return tirx.min(at, index(last[dim])) if over[dim] else at

        def vectors(start, lanes: int) -> tirx.Stmt:
            first = self.scope.analyzer.simplify(piece[0] + start)
            found = split_index(first, channels, self.extents)

            def element(i: int, j: int, t):
                y, x = (within(at + index(n), dim) for dim, (at, n) in enumerate(zip(corner, (i, j), strict=True)))
                pixel = {**found, line: y, column: x, channels[-1]: found[channels[-1]] + t}
                point = {**place, **{var: index(0) for var in self.image.window}, **pixel}
                return self.image.load.source[tuple(substitute(each, point) for each in self.image.load.indices)]

            def put(a: int, b: int, t, value):
                return tiles.store(value, index(a * plan.size + b), tile, first + t)

            return self.both(self.into, by_rows, element, half, put, lanes)

        return allocate([half], self._over_vectors(piece[1], vectors))

    # -- products ------------------------------------------------------------------------------------------------

    def _filters_of(self, place: Mapping, first, start: tuple, count: int, width: int, tiles: ByPoints) -> tirx.Stmt:
        """Return the results of a part of the rows for `count` panels, the last of which has `width` filters.

        `start` is the number of the part, and the first panel.
        """
        plan, (part, panel) = self.plan, start
        rows = plan.rows // plan.parts
        sums = ByPoints.of(plan, "sums", rows * plan.across, count * plan.panel)
        tile = self.scope.analyzer.simplify(part * index(rows * plan.across))

        def point(a):
            def one(p):
                coming = self.coming((index(0), a, panel), p, count, -(-rows * plan.across // plan.tile.height))
                return self._products((a, tile), panel + p, p, tiles, sums, coming)

            return self.scope.loop(count, one, "panel")

        products = self.scope.loop(plan.points, point, "a")
        filters, at = (count - 1) * plan.panel + width, self.scope.index(panel * index(plan.panel))
        line = self.scope.analyzer.simplify(first + part * index(rows * plan.result))
        back = self._over_tiles(line, rows, lambda t, y, x: self._back(place, t, (y, x), at, filters, sums))
        return allocate([sums.buffer], block(products, back))

    def _products(self, place: tuple, panel, local, tiles: ByPoints, sums: ByPoints, coming: NextPanel) -> tirx.Stmt:
        """Return the products of a panel with tiles, at a point.

        `place` is the point and the first tile; `local` is the number of the panel in `sums`.
        """
        plan, zero, (a, start) = self.plan, index(0), place
        first = local * index(plan.panel)
        micro = FmaKernel(
            *(self.scope, self.lanes, DTYPE),
            in_place(lambda t, c: tiles[a, start + t, c]),
            Reader(lambda _, step: lambda j: self.windows[zero, a, panel, step.number, j]),
            self.depth,
            Stored(lambda value, t, f: sums.store(value, a, t, first + f), tirx.const(0, DTYPE)),
            prefetch_ahead=lambda *_: lambda rows, _: coming.of_tile(rows.number),
        )
        rows = Axis.whole(*row_tiles(plan.tiles // plan.parts, plan.tile.height))
        return Gemm(self.scope, micro, rows, Axis.whole((0, 1, plan.panel))).nest()

    # -- out of tiles --------------------------------------------------------------------------------------------

    def _back(self, place: Mapping, tile, corner: tuple, start, filters: int, sums: ByPoints) -> tirx.Stmt:
        plan, m = self.plan, self.plan.result
        half = scratch([m, plan.size, self.lanes], DTYPE, "half")
        done = scratch([m, m, self.lanes], DTYPE, "result")
        rows, searched = self.contraction.rows, branches(self.reduction.finish)

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
