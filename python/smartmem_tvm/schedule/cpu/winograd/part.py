# SPDX-License-Identifier: Apache-2.0
"""What the parts of the nest of a convolution by transformed tiles have in common."""

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
    """Scratch for rows of the tiles of a block, for each point; `length` elements from one point to the next."""

    buffer: object
    length: int
    pitch: int

    @classmethod
    def of(cls, plan: WinogradPlan, name: str, rows: int, pitch: int | None = None) -> ByPoints:
        """Scratch for so many rows, by default of all that is computed of the tiles of a block.

        There is a vector more from point to point: at powers of two all points would share a few places of the cache.
        TVM takes gaps between dimensions away, so that there is one dimension.
        """
        pitch = pitch or plan.pitch
        length = rows * pitch + plan.params.lanes
        return cls(scratch([plan.points * length], DTYPE, name), length, pitch)

    def at(self, point, row, tile):
        """Where a number is."""
        return point * index(self.length) + row * index(self.pitch) + tile

    def __getitem__(self, place):
        return self.buffer[self.at(*place)]

    def store(self, value, point, row, tile) -> tirx.Stmt:
        """Store a number."""
        return store(self.buffer, value, self.at(point, row, tile))


class Part:
    """A part of the nest.

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
        # As they are multiplied by: opposite numbers are to be opposite after they were rounded, too.
        self.into, self.back = (np.float64(np.float32(each)) for each in (matrices.data, matrices.result))

    def vectors(self, width: int, lanes: int, body: Callable) -> tirx.Stmt:
        """Vectors of `lanes`, simplified."""
        return self.scope.vectors(width, lanes, body)

    def lines(self, most: int, total: int, first, body: Callable) -> tirx.Stmt:
        """`body` for at most `most` lines from `first` on, of `total`."""
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
        """``matrix @ x @ matrix'`` of vectors of tiles: the columns of x first, then the rows of what they yield.

        Parameters
        ----------
        product : callable
            ``(matrix, values) -> values``, see `transforms`.
        element : callable
            ``(row, column, tile) -> value`` of x.
        half : buffer
            For what is done in one direction.
        put : callable
            ``(row, column, tile, value) -> statement``.
        lanes : int, optional
            Of a vector; by default those of the plan.
        """
        rows, size = matrix.shape
        lanes = lanes or self.plan.lanes

        def column(a: int, j: int, t) -> tirx.Stmt:
            return store(half, product(matrix, [element(i, j, t) for i in range(size)])[a], a, j, t)

        def row(a: int, b: int, t) -> tirx.Stmt:
            return put(a, b, t, product(matrix, [half[a, j, t] for j in range(size)])[b])

        def each(body: Callable, first: range, second: range) -> list:
            return [self.vectors(lanes, lanes, lambda t, p=p, q=q: body(p, q, t)) for p in first for q in second]

        # What statements share, LLVM computes once.
        return block(*each(column, range(rows), range(size)), *each(row, range(rows), range(rows)))
