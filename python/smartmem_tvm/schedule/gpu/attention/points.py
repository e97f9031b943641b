# SPDX-License-Identifier: Apache-2.0
"""Fused indices of the stages of a chain of rows: batch, row, column and depth are one number each."""

from __future__ import annotations

from ....analysis.row_chain import RowChain
from ....ir.kernel import Stage, substitute
from ...core.expressions import split_index


class ChainPoints:
    """The iterators of a chain's stages as fused indices, and the stage that writes each buffer."""

    def __init__(self, chain: RowChain):
        self.chain = chain
        self.makers = {stage.body.buffer: stage for stage in chain.kernel.stages}

    def maker(self, buffer) -> Stage | None:
        """Return the stage that computes an intermediate result, or None for an input."""
        return self.makers.get(buffer)

    def axes(self, stage: Stage, variables) -> list[int]:
        """Return the axes of some iterators of a stage."""
        return [self.chain.axes[stage][v] for v in variables]

    def columns(self, stage: Stage) -> list:
        """Return the iterators of a stage along its row of results, in the order common to all stages."""
        return sorted(self.chain.inner(stage), key=lambda v: self.chain.axes[stage][v])

    def depth(self, stage: Stage) -> list:
        """Return the iterators that a stage reduces along, in that order."""
        return sorted(stage.reduction, key=lambda v: self.chain.axes[stage][v])

    def along(self, stage: Stage) -> list:
        """Return the iterators along the rows that a stage reads."""
        return self.depth(stage) if stage.reduction else self.columns(stage)

    def length(self, stage: Stage) -> int:
        """Return the number of values of a row that a stage reads (a product, a statistic) or writes."""
        total = 1
        for var in self.along(stage):
            total *= stage.extents[var]
        return total

    def point(self, stage: Stage, batch=None, row=None, column=None, depth=None) -> dict:
        """Return the values of the iterators of a stage at fused indices; None leaves a fused index out."""
        axes, extents, where = self.chain.axes[stage], self.chain.extents, {}
        for flat, numbers in ((batch, self.chain.batch), (row, self.chain.rows)):
            if flat is not None:
                where.update(split_index(flat, numbers, extents))
        point = {v: where[a] for v, a in axes.items() if a in where}
        for flat, variables in ((column, self.columns(stage)), (depth, self.depth(stage))):
            if flat is not None:
                point.update(split_index(flat, variables, stage.extents))
        return point

    def at(self, stage: Stage, expr, **indices):
        """Return `expr` of a stage at a point."""
        return substitute(expr, self.point(stage, **indices))
