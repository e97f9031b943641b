# SPDX-License-Identifier: Apache-2.0
"""Copies of the operands of a product of a chain of rows: a row of a block, columns of the matrix."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ....ir.index_map import is_if_then_else
from ....ir.kernel import Stage, substitute
from ....ir.walk import collect, contains, loads
from ...core.expressions import has_select, uses
from ...core.nest import block, index
from ..row_stages import RowStages
from .axis import Strip


class ChainCopies:
    """The loops that copy operands of the product of one stage."""

    def __init__(self, stages: RowStages, stage: Stage):
        self.stages, self.stage, self.scope, self.lanes = stages, stage, stages.scope, stages.params.lanes

    def row(self, left, row, put: Callable) -> tirx.Stmt:
        """Return ``put(element, step)`` for each element of a row of the left operand."""
        reduction, lanes = self.stage.reduction, self.lanes

        def at(flat, depth: dict) -> tirx.Stmt:
            point = {**self.stages.point(self.stage, row), **depth}
            return self.scope.simplify(put(self.stages.value(left, row, point), flat))

        if len(reduction) > 1 or has_select(left):
            return self.over_depth(at)
        var, depth = reduction[-1], self.stage.extents[reduction[-1]]
        count, rest = divmod(depth, lanes)

        def one(k) -> tirx.Stmt:
            return at(k, {var: k})

        def vector(v) -> tirx.Stmt:
            return self.stages.vector(lambda j: one(v * index(lanes) + j))

        main = self.scope.loop(count, vector, "v") if count else None
        return block(main, self.scope.loop(rest, lambda j: one(index(depth - rest) + j), "k") if rest else None)

    def columns(self, right, strip: Strip, put: Callable, before: Callable | None = None) -> tirx.Stmt:
        """Return ``put(element, step, column)`` for each column of a strip of the right operand.

        Parameters
        ----------
        before : callable, optional
            Step -> the statement in front of a step's vectors.
        """
        product, width = self.stages.chain.products[self.stage], strip.kept
        whole = 0 if _is_searched(right, product.columns) else width // self.lanes * self.lanes

        def at(j) -> Callable:
            place = self.stages.point(self.stage, None, strip.first + j)
            return lambda flat, depth: self.scope.simplify(put(substitute(right, {**place, **depth}), flat, j))

        def one(flat, depth: dict) -> tirx.Stmt:
            vectors = self.stages.vectors(whole, lambda j: at(j)(flat, depth)) if whole else None
            return block(before(flat) if before is not None else None, vectors)

        many = self.over_depth(one) if whole or before is not None else None
        # Column by column, so that each column's address is computed once.
        rest = self.scope.loop(width - whole, lambda j: self.over_depth(at(index(whole) + j)), "j")
        return block(many, rest if whole < width else None)

    def over_depth(self, body: Callable) -> tirx.Stmt:
        """Return one loop for each depth iterator, so that no index is divided; `body` also takes the fused index."""
        vars_, extents = self.stage.reduction, self.stage.extents
        end = None if self.stages.keys is None else self.stages.keys.depth(self.stage)  # of the only iterator

        def nest(level: int, flat, point: dict) -> tirx.Stmt:
            if level == len(vars_):
                return body(flat, point)
            var = vars_[level]
            return self.scope.loop(
                extents[var] if end is None else end,
                lambda v: nest(level + 1, flat * index(extents[var]) + v, {**point, var: v}),
                f"k{level}",
                most=extents[var],
            )

        return nest(0, index(0), {})


def _is_searched(expr, columns: tuple) -> bool:
    """Whether a condition or another load decides the addresses of columns, so that no vector load reads them."""
    if contains(expr, ir.Call, is_if_then_else):
        return True
    inside = [i for load in loads(expr) for i in load.indices]
    conditions = [select.condition for select in collect(expr, tirx.Select)]
    gathers = [load for index_ in inside for load in loads(index_)]
    return any(uses(node, columns) for node in (*conditions, *gathers))
