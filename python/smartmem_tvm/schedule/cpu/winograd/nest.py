# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a convolution by transformed tiles.

    for (picture, block of rows of tiles):
      for each channel:
        planes[line, j, t] = image[line, t*m + j]            columns t*m + j of neighbouring tiles next to each other
        tiles[a, channel, t] = (B' d B)[a]                   for each row of tiles: vectors of tiles
      for each group of filters:
        for each of the (m + 2)^2 points a:
          sums[a, filter, t] = sum over channels of windows[a, filter, channel] * tiles[a, channel, t]
        for each filter:
          lines[m*r + i, m*t + j] = (A' sums A)[i, j]
          out = finish(lines)

One of the loops runs on the threads: the first if it is long enough, else those over channels and filters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tvm import tirx

from ....ir.kernel import substitute
from ...core.expressions import has_select, split_index
from ...core.nest import PARALLEL, SERIAL, UNROLL, Scope, allocate, block, index, scratch, store
from .plan import WinogradPlan
from .transforms import by_columns, by_rows, transforms

_DTYPE = "float32"


@dataclass(frozen=True, eq=False)
class _ByPoints:
    """Scratch for rows of the tiles of a block, for each point; `length` elements from one to the next."""

    buffer: object
    length: int
    pitch: int

    def at(self, point, row, tile):
        """Where a number is."""
        return point * index(self.length) + row * index(self.pitch) + tile

    def __getitem__(self, place):
        return self.buffer[self.at(*place)]

    def store(self, value, point, row, tile) -> tirx.Stmt:
        """Store a number."""
        return store(self.buffer, value, self.at(point, row, tile))


class WinogradNest:
    """Makes the nest of one convolution.

    Parameters
    ----------
    plan : WinogradPlan
    windows : buffer
        The transformed windows: (groups, points, panels, channels, filters of a panel).
    """

    def __init__(self, plan: WinogradPlan, windows):
        self.plan, self.windows, self.scope = plan, windows, Scope()
        self.contraction, self.image = plan.windows.contraction, plan.windows.image
        self.reduction, self.extents = self.contraction.reduction, self.contraction.reduction.extents
        self.lanes = plan.params.lanes
        self.spread = plan.params.cores if plan.parallel and not plan.parallel_outside else 1
        matrices = transforms(plan.result)
        # As they are multiplied by: opposite numbers are to be opposite after they were rounded, too.
        self.into, self.back = (np.float64(np.float32(each)) for each in (matrices.data, matrices.result))

    def kernel(self) -> tirx.Stmt:
        """The whole nest."""
        plan = self.plan

        def task(number):
            place = split_index(tirx.floordiv(number, index(plan.blocks)), plan.windows.outer, self.extents)
            first = tirx.floormod(number, index(plan.blocks)) * index(plan.rows * plan.result)
            simplify = self.scope.analyzer.simplify
            return self._block({var: simplify(at) for var, at in place.items()}, simplify(first))

        outside = plan.parallel and plan.parallel_outside
        return self.scope.loop(plan.pictures * plan.blocks, task, "task", PARALLEL if outside else SERIAL)

    def _block(self, place: Mapping, first) -> tirx.Stmt:
        """The results from line `first` on, for all filters."""
        plan = self.plan
        tiles = self._by_points("tiles", plan.channels)
        into = self._chunks(plan.channels, -(-plan.channels // self.spread), self._into(place, first, tiles))
        products = self._chunks(plan.panels, plan.together, self._products(place, first, tiles))
        return allocate([tiles.buffer], block(into, products))

    def _by_points(self, name: str, rows: int) -> _ByPoints:
        """Scratch for so many rows of the tiles of a block, for each point.

        There is a vector more from point to point: at powers of two all points would share a few places of the cache.
        TVM takes gaps between dimensions away, so that there is one dimension.
        """
        length = rows * self.plan.pitch + self.lanes
        return _ByPoints(scratch([self.plan.points * length], _DTYPE, name), length, self.plan.pitch)

    def _chunks(self, total: int, length: int, body: Callable) -> tirx.Stmt:
        """``body(first, count)`` for chunks of at most `length`, on threads if there is nothing else for them."""
        count = -(-total // length)

        def chunk(n):
            return body(n * index(length), self._rest(n, total, length))

        return self.scope.loop(count, chunk, "chunk", PARALLEL if self.spread > 1 and count > 1 else SERIAL)

    @staticmethod
    def _rest(n, total: int, length: int):
        """What is in chunk `n`."""
        if total <= length or total % length == 0:
            return min(total, length)
        return tirx.min(index(length), index(total) - n * index(length))

    # -- the image -----------------------------------------------------------------------------------------------

    def _into(self, place: Mapping, first, tiles) -> Callable:
        plan = self.plan
        lines, columns = plan.rows * plan.result + 2, plan.strips * plan.lanes + 1
        planes = scratch([lines, plan.result, -(-columns // self.lanes) * self.lanes], _DTYPE, "planes")
        half = scratch([plan.size, plan.size, plan.lanes], _DTYPE, "half")

        def chunk(start, count) -> tirx.Stmt:
            def channel(n):
                at = self.scope.analyzer.simplify(start + n)
                return block(self._take_apart(place, first, at, planes), self._tiles(at, planes, half, tiles))

            length = None if isinstance(count, int) else -(-plan.channels // self.spread)
            each = self.scope.loop(count, channel, "channel", most=length)
            return allocate([planes, half], block(self._clear(planes), each))

        return chunk

    def _clear(self, planes) -> tirx.Stmt:
        """Zeros, where nothing is copied to: beyond the last line and column."""
        lines, within, width = (int(each) for each in planes.shape)
        zero = tirx.const(0, _DTYPE)
        return self.scope.loop(
            lines,
            lambda y: self.scope.loop(
                within, lambda j: self._vectors(width, self.lanes, lambda t: store(planes, zero, y, j, t)), "j"
            ),
            "y",
        )

    def _take_apart(self, place: Mapping, first, channel, planes) -> tirx.Stmt:
        m, (high, wide) = self.plan.result, (each + 2 for each in self.plan.sizes)
        read = self._reader(place, channel)

        def line(y):
            def copy(t, j: int):
                return self.scope.simplify(store(planes, read(first + y, t * index(m) + j), y, j, t))

            whole = self.scope.loop(wide // m, lambda t: block(*(copy(t, j) for j in range(m))), "t")
            return block(whole, *(copy(index(wide // m), j) for j in range(wide % m)))

        return self._lines(int(planes.shape[0]), high, first, line)

    def _lines(self, most: int, total: int, first, body: Callable) -> tirx.Stmt:
        """`body` for at most `most` lines from `first` on, of `total`."""
        plan = self.plan
        reach = (plan.blocks - 1) * plan.rows * plan.result + most
        if reach <= total:
            return self.scope.loop(most, body, "y")
        if plan.blocks == 1:
            return self.scope.loop(total, body, "y")
        return self.scope.loop(tirx.min(index(most), index(total) - first), body, "y", most=most)

    def _reader(self, place: Mapping, channel) -> Callable:
        line, column = self.image.columns
        where = {**place, **split_index(channel, self.plan.windows.channels, self.extents)}
        where.update({var: index(0) for var in self.image.window})

        def read(y, x):
            point = {**where, line: y, column: x}
            return self.image.load.source[tuple(substitute(each, point) for each in self.image.load.indices)]

        return read

    def _tiles(self, channel, planes, half, tiles) -> tirx.Stmt:
        plan = self.plan

        def strip(r, s):
            start = s * index(plan.lanes)

            def element(i: int, j: int, t):
                return planes[r * index(plan.result) + i, j % plan.result, start + t + j // plan.result]

            def put(a: int, b: int, t, value):
                return tiles.store(value, index(a * plan.size + b), channel, r * index(plan.across) + start + t)

            return self._both(self.into, by_rows, element, half, put)

        rows = self.scope.loop(plan.rows, lambda r: self.scope.loop(plan.strips, lambda s: strip(r, s), "strip"), "row")
        return block(self._fill(channel, tiles), rows)

    def _fill(self, channel, tiles) -> tirx.Stmt | None:
        """Zeros in the last vector, if the tiles do not fill it: what is there is multiplied, and not stored."""
        plan = self.plan
        if plan.tiles % self.lanes == 0:
            return None
        last, zero = index((plan.vectors - 1) * self.lanes), tirx.const(0, _DTYPE)

        def fill(a):
            return self._vectors(self.lanes, self.lanes, lambda t: tiles.store(zero, a, channel, last + t))

        return self.scope.loop(plan.points, fill, "a")

    def _both(self, matrix: np.ndarray, product: Callable, element: Callable, half, put: Callable) -> tirx.Stmt:
        """``matrix @ x @ matrix'`` of vectors of tiles: the columns of x first, then the rows of what they yield."""
        rows, size = matrix.shape

        def column(j: int, t):
            found = product(matrix, [element(i, j, t) for i in range(size)])
            return [store(half, found[a], a, j, t) for a in range(rows)]

        def row(a: int, t):
            found = product(matrix, [half[a, j, t] for j in range(size)])
            return [put(a, b, t, found[b]) for b in range(rows)]

        lanes = self.plan.lanes
        down = [
            self._vectors(lanes, lanes, lambda t, j=j, a=a: column(j, t)[a]) for j in range(size) for a in range(rows)
        ]
        along = [
            self._vectors(lanes, lanes, lambda t, a=a, b=b: row(a, t)[b]) for a in range(rows) for b in range(rows)
        ]
        return block(*down, *along)

    # -- products ------------------------------------------------------------------------------------------------

    def _products(self, place: Mapping, first, tiles) -> Callable:
        plan = self.plan
        height = plan.tile.height
        sums = self._by_points("sums", plan.together * height)
        half = scratch([plan.result, plan.size, plan.lanes], _DTYPE, "half")
        result = scratch([plan.result, plan.result, plan.strips * plan.lanes], _DTYPE, "result")
        lines = scratch([plan.rows * plan.result, plan.across * plan.result], _DTYPE, "lines")

        def chunk(start, count) -> tirx.Stmt:
            most = None if isinstance(count, int) else plan.together

            def point(a):
                return self.scope.loop(
                    count, lambda p: self._panel(place, a, start + p, p, tiles, sums), "panel", most=most
                )

            def filter_(g):
                back = self._back(g, sums, half, result, lines)
                return block(back, self._finish(place, first, start * index(height) + g, lines))

            filters = self._filters(start, count)
            return allocate(
                [sums.buffer, half, result, lines],
                block(
                    self.scope.loop(plan.points, point, "a"),
                    self.scope.loop(filters, filter_, "filter", most=plan.together * height),
                ),
            )

        return chunk

    def _filters(self, start, count):
        """Filters of a chunk of panels; the last panel may have fewer."""
        plan, height = self.plan, self.plan.tile.height
        if isinstance(count, int) and plan.panels * height == plan.filters:
            return count * height
        if plan.panels <= plan.together:
            return plan.filters
        return tirx.min(index(plan.together * height), index(plan.filters) - start * index(height))

    def _panel(self, place: Mapping, a, panel, local, tiles, sums) -> tirx.Stmt:
        plan, width = self.plan, self.plan.tile.width
        group = index(0)
        for var in plan.windows.groups:
            group = group * index(self.extents[var]) + place[var]
        panel = self.scope.analyzer.simplify(panel)

        def strip(at, wide: int):
            return self._tile(group, a, panel, local, at, wide, tiles, sums)

        whole, rest = divmod(plan.vectors * self.lanes, width)
        main = self.scope.loop(whole, lambda s: strip(s * index(width), width), "strip") if whole else None
        return block(main, strip(index(whole * width), rest) if rest else None)

    def _tile(self, group, a, panel, local, at, width: int, tiles, sums) -> tirx.Stmt:
        plan, height = self.plan, self.plan.tile.height
        acc = scratch([height * width], _DTYPE, "acc")

        def each(body) -> tirx.Stmt:
            vectors = lambda i: self._vectors(width, self.lanes, lambda j: body(i, j))  # noqa: E731
            return self.scope.loop(height, vectors, "i", UNROLL)

        def add(c):
            def one(i, j):
                product = self.windows[group, a, panel, c, i] * tiles[a, c, at + j]
                return store(acc, acc[i * width + j] + product, i * width + j)

            return each(one)

        start = each(lambda i, j: store(acc, tirx.const(0, _DTYPE), i * width + j))
        spill = each(lambda i, j: sums.store(acc[i * width + j], a, local * index(height) + i, at + j))
        return allocate([acc], block(start, self.scope.loop(plan.channels, add, "c"), spill))

    # -- results -------------------------------------------------------------------------------------------------

    def _back(self, g, sums, half, result, lines) -> tirx.Stmt:
        """Transform the sums of one filter back, into the lines of its results."""
        plan = self.plan

        def strip(r, s):
            start = s * index(plan.lanes)

            def element(a: int, b: int, t):
                return sums[index(a * plan.size + b), g, r * index(plan.across) + start + t]

            return self._both(
                self.back, by_columns, element, half, lambda i, j, t, v: store(result, v, i, j, start + t)
            )

        def row(r):
            def weave(i, t):
                at = r * index(plan.result) + i
                return block(
                    *(store(lines, result[i, j, t], at, t * index(plan.result) + j) for j in range(plan.result))
                )

            woven = self.scope.loop(
                plan.result, lambda i: self.scope.loop(plan.across, lambda t: weave(i, t), "t"), "i"
            )
            return block(self.scope.loop(plan.strips, lambda s: strip(r, s), "strip"), woven)

        return self.scope.loop(plan.rows, row, "row")

    def _finish(self, place: Mapping, first, row, lines) -> tirx.Stmt:
        line, column = self.image.columns
        wide = self.plan.sizes[1]
        filter_ = split_index(self.scope.analyzer.simplify(row), self.contraction.rows, self.extents)

        def result(y, x):
            point = {**place, **filter_, line: first + y, column: x}
            return self.scope.simplify(self.reduction.store(lines[y, x], point))

        def across(y) -> tirx.Stmt:
            if has_select(self.reduction.finish):
                return self.scope.loop(wide, lambda x: result(y, x), "x")
            whole = wide // self.lanes * self.lanes
            starts = [(0, whole), (whole, wide - whole)]
            parts = [self._vectors(n, self.lanes, lambda x, s=s: result(y, index(s) + x)) for s, n in starts if n]
            return block(*parts)

        return self._lines(int(lines.shape[0]), self.plan.sizes[0], first, across)

    def _vectors(self, width: int, lanes: int, body) -> tirx.Stmt:
        return self.scope.vectors(width, lanes, body)
