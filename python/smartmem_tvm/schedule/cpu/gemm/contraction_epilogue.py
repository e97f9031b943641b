# SPDX-License-Identifier: Apache-2.0
"""The epilogue of a contraction: what is folded behind its sums, and the stores of its results."""

from __future__ import annotations

from tvm import tirx

from ....ir.blends import branches
from ....ir.kernel import substitute
from ...core.nest import SERIAL, VECTOR, Scope, index
from ..matmul_plan import MatmulPlan
from ..prefetch import prefetch_results
from .axis import Strip
from .epilogue import fits_registers


class ContractionEpilogue:
    """The epilogue of the results of one batch."""

    def __init__(self, plan: MatmulPlan, scope: Scope, batch):
        self.plan, self.scope, self.batch = plan, scope, batch
        self.reduction = plan.contraction.reduction
        self.start = self.reduction.init

    def stays_in_registers(self, _: Strip) -> bool:
        """Whether results are stored from the registers: a small epilogue, along the columns."""
        return fits_registers(self.reduction.finish) and not self.plan.stores_down

    def prefetched(self, rows: Strip, columns: Strip) -> tirx.Stmt | None:
        """Return the prefetch of the cache lines that a tile stores, if it stores contiguous runs."""
        plan, reduction = self.plan, self.reduction
        if plan.output_run(False, plan.params.lanes) == 1 or branches(reduction.finish):
            return None

        def at(load, i: int, j):
            return self.scope.simplify(
                substitute(load, plan.point(self.batch, rows.first + index(i), columns.first + j))
            )

        return prefetch_results(reduction, plan.contraction.rows, at, rows.size, columns.size)

    def element(self, value, row, column) -> tirx.Stmt:
        """Return the store of one result."""
        return self.reduction.store(value, self.plan.point(self.batch, row, column))

    def block(self, sums, rows: Strip, columns: Strip) -> tirx.Stmt:
        """Return the stores of a tile in the direction in which the result is contiguous."""
        height, width = rows.size, columns.size

        def at(i, j) -> tirx.Stmt:
            return self.scope.simplify(self.element(sums[i, j], rows.first + i, columns.first + j))

        if self.plan.stores_down:
            vector = height in (4, 8) and not branches(self.reduction.finish)
            kind = VECTOR if vector else SERIAL
            return self.scope.loop(width, lambda j: self.scope.loop(height, lambda i: at(i, j), "i", kind), "j")
        if branches(self.reduction.finish):
            return self.scope.loop(height, lambda i: self.scope.loop(width, lambda j: at(i, j), "j"), "i")
        lanes = self.plan.params.lanes
        return self.scope.loop(height, lambda i: self.scope.vectors(width, lanes, lambda j: at(i, j)), "i")
