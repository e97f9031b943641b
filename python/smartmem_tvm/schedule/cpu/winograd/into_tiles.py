# SPDX-License-Identifier: Apache-2.0
"""The transform of a picture into tiles.

For each channel:

    planes[line, j, t] = image[line, t*m + j]            column j of adjacent tiles is contiguous
    tiles[a, channel, t] = (B' d B)[a]                   for each row of tiles: vectors of tiles
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import tirx

from ....ir.kernel import substitute
from ...core.expressions import split_index
from ...core.nest import allocate, block, index, scratch, store
from .part import DTYPE, ByPoints, Part
from .transforms import WINDOW, by_rows


class IntoTiles(Part):
    """The emitter of the loops over channels."""

    def channels(self, place: Mapping, first, tiles: ByPoints, start, count, most: int) -> tirx.Stmt:
        """Return the loop over `count` (at most `most`) channels from `start` on, for results from line `first` on."""
        plan = self.plan
        lines, columns = plan.rows * plan.result + WINDOW - 1, plan.strips * plan.lanes + 1
        planes = scratch([lines, plan.result, -(-columns // self.lanes) * self.lanes], DTYPE, "planes")
        half = scratch([plan.size, plan.size, plan.lanes], DTYPE, "half")

        def channel(n):
            at = self.scope.analyzer.simplify(start + n)
            return block(self._take_apart(place, first, at, planes), self._tiles(at, planes, half, tiles))

        each = self.scope.loop(count, channel, "channel", most=most)
        return allocate([planes, half], block(self._clear(planes), each))

    def _clear(self, planes) -> tirx.Stmt:
        """Return the statements that set the planes to zero, also beyond the last line and column."""
        lines, within, width = (int(each) for each in planes.shape)
        zero = tirx.const(0, DTYPE)

        def plane(y, j) -> tirx.Stmt:
            return self.vectors(width, self.lanes, lambda t: store(planes, zero, y, j, t))

        return self.scope.loop(lines, lambda y: self.scope.loop(within, lambda j: plane(y, j), "j"), "y")

    def _take_apart(self, place: Mapping, first, channel, planes) -> tirx.Stmt:
        m, (high, wide) = self.plan.result, (each + WINDOW - 1 for each in self.plan.sizes)
        read = self._reader(place, channel)

        def line(y):
            def copy(t, j: int):
                return self.scope.simplify(store(planes, read(first + y, t * index(m) + j), y, j, t))

            whole = self.scope.loop(wide // m, lambda t: block(*(copy(t, j) for j in range(m))), "t")
            return block(whole if wide >= m else None, *(copy(index(wide // m), j) for j in range(wide % m)))

        return self.lines(int(planes.shape[0]), high, first, line)

    def _reader(self, place: Mapping, channel) -> Callable:
        line, column = self.image.columns
        where = {**place, **split_index(channel, self.plan.windows.channels, self.extents)}
        where.update({var: index(0) for var in self.image.window})

        def read(y, x):
            point = {**where, line: y, column: x}
            return self.image.load.source[tuple(substitute(each, point) for each in self.image.load.indices)]

        return read

    def _tiles(self, channel, planes, half, tiles: ByPoints) -> tirx.Stmt:
        plan = self.plan

        def strip(r, s):
            start = s * index(plan.lanes)

            def element(i: int, j: int, t):
                return planes[r * index(plan.result) + i, j % plan.result, start + t + j // plan.result]

            def put(a: int, b: int, t, value):
                return tiles.store(value, index(a * plan.size + b), channel, r * index(plan.across) + start + t)

            return self.both(self.into, by_rows, element, half, put)

        def row(r):
            return self.scope.loop(plan.strips, lambda s: strip(r, s), "strip")

        return block(self._fill(channel, tiles), self.scope.loop(plan.rows, row, "row"))

    def _fill(self, channel, tiles: ByPoints) -> tirx.Stmt | None:
        """Return zeros for the last vector if tiles do not fill it; results of these are not stored."""
        plan = self.plan
        if plan.tiles % self.lanes == 0:
            return None
        last, zero = index((plan.vectors - 1) * self.lanes), tirx.const(0, DTYPE)

        def fill(a):
            return self.vectors(self.lanes, self.lanes, lambda t: tiles.store(zero, a, channel, last + t))

        return self.scope.loop(plan.points, fill, "a")
