# SPDX-License-Identifier: Apache-2.0
"""The transform of products back to results.

For each filter:

    lines[m*r + i, m*t + j] = (A' sums A)[i, j]
    out = finish(lines)
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from ....ir.blends import branches
from ...core.expressions import split_index
from ...core.nest import Scope, block, index, scratch, store
from .part import DTYPE, ByPoints, Part
from .plan import WinogradPlan
from .transforms import by_columns


class OutOfTiles(Part):
    """The emitter of the loops for a filter.

    Attributes
    ----------
    buffers : tuple of buffer
        Scratch buffers to allocate around the loops.
    """

    def __init__(self, plan: WinogradPlan, scope: Scope):
        super().__init__(plan, scope)
        self._half = scratch([plan.result, plan.size, plan.lanes], DTYPE, "half")
        self._result = scratch([plan.result, plan.result, plan.strips * plan.lanes], DTYPE, "result")
        self._lines = scratch([plan.rows * plan.result, plan.across * plan.result], DTYPE, "lines")
        self.buffers = (self._half, self._result, self._lines)

    def filter(self, place: Mapping, first, filter_, row, sums: ByPoints) -> tirx.Stmt:
        """Return the results of a filter from line `first` on; its sums are row `row` of `sums`."""
        rows = self.scope.loop(self.plan.rows, lambda r: self._tiles(row, r, sums), "row")
        return block(rows, self._finish(place, first, filter_))

    def _tiles(self, row, r, sums: ByPoints) -> tirx.Stmt:
        """Return the transform of row `r` of tiles into lines."""
        m, plan = self.plan.result, self.plan

        def strip(s):
            start = s * index(plan.lanes)

            def element(a: int, b: int, t):
                return sums[index(a * plan.size + b), row, r * index(plan.across) + start + t]

            def put(i: int, j: int, t, value):
                return store(self._result, value, i, j, start + t)

            return self.both(self.back, by_columns, element, self._half, put)

        def weave(i, t):
            line = r * index(m) + i
            return block(*(store(self._lines, self._result[i, j, t], line, t * index(m) + j) for j in range(m)))

        woven = self.scope.loop(m, lambda i: self.scope.loop(plan.across, lambda t: weave(i, t), "t"), "i")
        return block(self.scope.loop(plan.strips, strip, "strip"), woven)

    def _finish(self, place: Mapping, first, filter_) -> tirx.Stmt:
        line, column = self.image.columns
        wide = self.plan.sizes[1]
        at = split_index(self.scope.analyzer.simplify(filter_), self.contraction.rows, self.extents)

        def result(y, x):
            point = {**place, **at, line: first + y, column: x}
            return self.scope.simplify(self.reduction.store(self._lines[y, x], point))

        def across(y) -> tirx.Stmt:
            if branches(self.reduction.finish):
                return self.scope.loop(wide, lambda x: result(y, x), "x")
            whole = wide // self.lanes * self.lanes
            starts = [(0, whole), (whole, wide - whole)]
            parts = [self.vectors(n, self.lanes, lambda x, s=s: result(y, index(s) + x)) for s, n in starts if n]
            return block(*parts)

        return self.lines(int(self._lines.shape[0]), self.plan.sizes[0], first, across)
