# SPDX-License-Identifier: Apache-2.0
"""The start indices of a register tile's rows, for an operand whose rows have no constant stride: windows of an image.

    at[i, d] = place(row + i, 0)[d]                               once for each tile, in registers
    acc[i, j] += image[at[i, 0] + p, at[i, 1] + q, c] * right[k, j]

Windows end where a line of the image ends, so the stride from one window to the next varies. The start of each window
is computed once for a tile, instead of by a division at each step along the depth. The offsets along the depth from a
row's start are the same for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from ....ir.kernel import substitute
from ...core.expressions import uses
from ...core.nest import UNROLL, Scope, block, current_index_type, index, scratch, store
from .axis import Strip
from .operands import DepthStep, Reader


class RowOffsets:
    """The start indices of the rows of one tile.

    Parameters
    ----------
    load : TensorLoad
        The operand, at a point of the iterators.
    depth : sequence of tirx.Var
        Iterators of the sum.
    point : callable
        Row of the tile -> values of all other iterators that the operand depends on.
    height : int
        Rows of the tile.
    """

    def __init__(self, scope: Scope, load, depth: Sequence, point: Callable, height: int):
        self.scope, self.load, self.point, self.height = scope, load, point, height
        self.start = {var: index(0) for var in depth}
        others = [[var for var in point(index(0)) if uses(at, [var])] for at in load.indices]
        self.moving = [dim for dim, each in enumerate(others) if each]
        self.nowhere = {var: index(0) for each in others for var in each}
        self.buffer = scratch([height, max(1, len(self.moving))], current_index_type(), "at")

    def find(self) -> tirx.Stmt:
        """Return the statements that compute the start indices."""

        def one(i) -> tirx.Stmt:
            known = {**self.start, **self.point(i)}
            places = [self.scope.simplify(substitute(self.load.indices[dim], known)) for dim in self.moving]
            return block(*(store(self.buffer, place, i, n) for n, place in enumerate(places)))

        return self.scope.loop(self.height, one, "i", UNROLL)

    def read(self, i, depth: dict):
        """Return the element of row `i` at a step along the depth."""

        def at(dim: int):
            step = substitute(self.load.indices[dim], {**self.nowhere, **depth})
            if dim not in self.moving:
                return self.scope.index(step)
            first = substitute(self.load.indices[dim], {**self.nowhere, **self.start})
            return self.buffer[i, self.moving.index(dim)] + self.scope.index(step - first)

        return tirx.BufferLoad(self.load.source, [at(dim) for dim in range(len(self.load.indices))])


@dataclass(frozen=True, eq=False)
class OffsetRows:
    """The source of such a left operand: ``point(row)`` are the values of all iterators but those of the depth.

    A step along a depth of one iterator may have a number and no point.
    """

    scope: Scope
    load: tirx.PrimExpr
    depth: Sequence
    point: Callable

    def of(self, rows: Strip) -> Reader:
        """Return the rows of a tile, whose start indices are computed first."""
        offsets = RowOffsets(self.scope, self.load, self.depth, lambda i: self.point(rows.first + i), rows.size)

        def at(_: Strip, step: DepthStep) -> Callable:
            point = step.point or dict(zip(self.depth, (step.number,), strict=True))
            return lambda i: offsets.read(i, point)

        return Reader(at, [offsets.buffer], offsets.find())
