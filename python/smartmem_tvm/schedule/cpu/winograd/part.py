# SPDX-License-Identifier: Apache-2.0
"""The common base of the parts of a Winograd convolution's loop nest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import tirx

from ...core.nest import Scope, block, index, scratch, store
from .plan import WinogradPlan
from .transforms import transforms

DTYPE = "float32"


@dataclass(frozen=True, eq=False)
class ByPoints:
    """Scratch memory (points, rows, tiles of a block), with strides of `length` and `pitch` elements."""

    buffer: object
    length: int
    pitch: int

    @classmethod
    def of(cls, plan: WinogradPlan, name: str, rows: int, pitch: int | None = None) -> ByPoints:
        """Return scratch memory for `rows` rows, by default as long as the plan's rows of tiles.

        Each point has one vector more than it needs: at a stride that is a power of two, all points would share a few
        sets of the cache. TVM removes gaps between dimensions, so the buffer has one dimension only.
        """
        pitch = pitch or plan.pitch
        length = rows * pitch + plan.params.lanes
        return cls(scratch([plan.points * length], DTYPE, name), length, pitch)

    def at(self, point, row, tile):
        """Return the position of an element."""
        return point * index(self.length) + row * index(self.pitch) + tile

    def __getitem__(self, place):
        return self.buffer[self.at(*place)]

    def store(self, value, point, row, tile) -> tirx.Stmt:
        """Return the store of an element."""
        return store(self.buffer, value, self.at(point, row, tile))


class Part:
    """A part of the loop nest.

    Parameters
    ----------
    plan : WinogradPlan
    scope : Scope
    """

    def __init__(self, plan: WinogradPlan, scope: Scope):
        self.plan, self.scope, self.lanes = plan, scope, plan.params.lanes
        self.contraction, self.image = plan.windows.contraction, plan.windows.image
        self.reduction, self.extents = self.contraction.reduction, self.contraction.reduction.extents
        matrices = transforms(plan.result)
        # Rounded to float32 as in the kernel: opposite numbers have to stay opposite when they are rounded.
        self.into, self.back = (np.float64(np.float32(each)) for each in (matrices.data, matrices.result))

    def vectors(self, width: int, lanes: int, body: Callable) -> tirx.Stmt:
        """Return `body` for `width` elements in vectors of `lanes`, simplified."""
        return self.scope.vectors(width, lanes, body)

    def lines(self, most: int, total: int, first, body: Callable) -> tirx.Stmt:
        """Return `body` for at most `most` lines from `first` on, of `total`."""
        plan = self.plan
        reach = (plan.blocks - 1) * plan.rows * plan.result + most
        if reach <= total:
            return self.scope.loop(most, body, "y")
        if plan.blocks == 1:
            return self.scope.loop(total, body, "y")
        return self.scope.loop(tirx.min(index(most), index(total) - first), body, "y", most=most)

    def both(
        self,
        matrix: np.ndarray,
        product: Callable,
        element: Callable,
        half,
        put: Callable,
        lanes: int | None = None,
    ) -> tirx.Stmt:
        """Return ``matrix @ x @ matrix'`` for vectors of tiles: first of the columns of x, then of the resulting rows.

        Parameters
        ----------
        product : callable
            ``(matrix, values) -> values``, see `transforms`.
        element : callable
            ``(row, column, tile) -> value`` of x.
        half : buffer
            Scratch memory for the result of the first product.
        put : callable
            ``(row, column, tile, value) -> statement``.
        lanes : int, optional
            Lanes of a vector; by default those of the plan.
        """
        rows, size = matrix.shape
        lanes = lanes or self.plan.lanes

        def column(a: int, j: int, t) -> tirx.Stmt:
            return store(half, product(matrix, [element(i, j, t) for i in range(size)])[a], a, j, t)

        def row(a: int, b: int, t) -> tirx.Stmt:
            return put(a, b, t, product(matrix, [half[a, j, t] for j in range(size)])[b])

        def each(body: Callable, first: range, second: range) -> list:
            return [self.vectors(lanes, lanes, lambda t, p=p, q=q: body(p, q, t)) for p in first for q in second]

        # Statements repeat subexpressions, which LLVM computes once.
        return block(*each(column, range(rows), range(size)), *each(row, range(rows), range(rows)))
