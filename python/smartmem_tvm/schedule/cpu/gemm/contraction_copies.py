# SPDX-License-Identifier: Apache-2.0
"""Copies of the operands of a contraction: rows of the left one, columns of the right one.

Folded layout operators, padding and prologue arithmetic are evaluated in these loops, once for each element that is
copied, not once for each multiplication.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ....ir.kernel import substitute
from ...core.expressions import chooses_along, intervals, piece_length
from ...core.nest import UNROLL, VECTOR, Scope, block, index, store
from ..matmul_plan import MatmulPlan


class ContractionCopies:
    """The loops that copy operands of one contraction."""

    def __init__(self, plan: MatmulPlan, scope: Scope):
        self.plan, self.scope = plan, scope

    def row(self, batch, row, put: Callable, lanes: int = 1) -> tirx.Stmt:
        """Return ``put(element, step)`` for each element of a row of the left operand, in vectors of `lanes`."""
        left, place = self.plan.contraction.left, self.plan.point(batch, row)
        return self.over_depth(left, lambda k, point: put(substitute(left, {**place, **point}), k), lanes)

    def columns(self, packed, batch, column, width: int, over: Callable | None = None) -> tirx.Stmt:
        """Return the copy ``packed[step, column]`` of columns of the right operand.

        Parameters
        ----------
        over : callable, optional
            Makes the loops over a part of the depth, as `over_depth` does over all of it.
        """
        plan, right, run = self.plan, self.plan.contraction.right, self.plan.right_run(width)
        copy = self._copy_of(packed, batch, column, lambda k, j: (k, j))
        if run == 1 and width % plan.params.lanes == 0 and not chooses_along(right, plan.contraction.columns):
            run = plan.params.lanes  # gathered element by element, stored as a vector
        if run == 1:
            return self._one_by_one(width, copy, over)

        def row(k, point) -> tirx.Stmt:
            return self.scope.loop(
                width // run,
                lambda r: self.scope.loop(
                    run, lambda j: self.scope.simplify(copy(r * index(run) + j)(k, point)), "j", VECTOR
                ),
                "r",
                UNROLL,
            )

        return (over or self.over_depth)(right, row)

    def columns_along_depth(self, packed, batch, column, width: int) -> tirx.Stmt:
        """Return the copy ``packed[column, step]`` of columns of the right operand."""
        return self._one_by_one(width, self._copy_of(packed, batch, column, lambda k, j: (j, k)))

    def _copy_of(self, packed, batch, column, place: Callable) -> Callable:
        """Return a function of a column that copies its element at a step to ``packed[place(step, column)]``."""
        plan, right = self.plan, self.plan.contraction.right

        def copy(j):
            point = plan.point(batch, None, column + j)
            return lambda k, depth: store(packed, substitute(right, {**point, **depth}), *place(k, j))

        return copy

    def _one_by_one(self, width: int, copy: Callable, over: Callable | None = None) -> tirx.Stmt:
        """Return the copy of one column after the other, so that each column's address is computed once."""
        right, over = self.plan.contraction.right, over or self.over_depth
        return self.scope.loop(width, lambda j: over(right, copy(j)), "j")

    def over_depth(self, operand, body: Callable, lanes: int = 1) -> tirx.Stmt:
        """Return one loop for each depth iterator, so that no index is divided; `body` takes the fused index as well.

        Parameters
        ----------
        lanes : int
            SIMD lanes of the innermost loop, 1 for a scalar loop. It stays scalar if it is split because of a ``//`` or
            ``%`` in an index.
        """
        depth, extents = self.plan.contraction.depth, self.plan.contraction.reduction.extents

        def nest(level: int, flat, point: dict) -> tirx.Stmt:
            if level == len(depth):
                return self.scope.simplify(body(flat, point))
            var = depth[level]

            def at(v):
                return nest(level + 1, flat * index(extents[var]) + v, {**point, var: v})

            parts, piece = intervals(operand, var, extents), piece_length(operand, var, extents)
            of_line = lanes if var is depth[-1] else 1
            if len(parts) > 1:  # joined tensors: each has a loop of its own, without the condition
                lines = (self.scope.line(n, of_line, lambda v, s=s: at(index(s) + v), f"k{level}") for s, n in parts)
                return block(*lines)
            if piece in (1, extents[var]):
                return self.scope.line(extents[var], of_line, at, f"k{level}")
            return self.scope.loop(
                extents[var] // piece,
                lambda q: self.scope.loop(piece, lambda v: at(q * index(piece) + v), f"k{level}"),
                "piece",
            )

        return nest(0, index(0), {})
