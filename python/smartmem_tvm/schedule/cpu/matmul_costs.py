# SPDX-License-Identifier: Apache-2.0
"""The model of time of a contraction: cycles of multiplying, of copies, and of waiting for memory."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ...ir.walk import loads
from ..core.expressions import Walk, uses
from ..core.nest import fresh
from ..core.plans import Price
from . import machine
from .matmul_tasks import SURE
from .tile import Tile, total_cycles

if TYPE_CHECKING:
    from .matmul_plan import MatmulPlan

# Rows read at the same time, from which on a processor no longer sees that each is read in order: assumed
# (2026-11-26).
_STREAMS = 128
_NARROW = 8  # lanes. Chosen: the costs of lines were fitted with AVX2, and others with AVX-512


class MatmulCosts:
    """The times of a plan, in cycles of all threads together."""

    def __init__(self, plan: MatmulPlan):
        self.plan, self.params = plan, plan.params

    def working(self) -> float:
        """Return the estimated cycles of multiplying and of moving data, by which an orientation is chosen.

        For example, the last of 49 columns may take as long as a whole vector. If the 49 are rows instead, all vectors
        are full, but results are stored one by one.
        """
        plan = self.plan
        step = total_cycles(plan.tile, plan.rows, plan.columns, self.params, plan.depth, plan.steps)
        multiplying = plan.depth * step
        done = plan.batch * (multiplying + self.stepping()) + self._copying() + self._waiting()
        return done * max(1.0, plan.tasks.idle / SURE)

    @property
    def price(self) -> Price:
        """The result of `working` by its terms, in cycles of all threads together."""
        plan = self.plan
        step = total_cycles(plan.tile, plan.rows, plan.columns, self.params, plan.depth, plan.steps)
        terms = {
            "multiply-adds": plan.batch * plan.depth * step,
            "left operand across cache lines": plan.batch * self.stepping(),
            "copies and stores": self._copying(),
            "weights from memory": self._waiting(),
        }
        total = self.working()
        shared = self.params.cores if plan.parallel else 1
        return Price(total, {**terms, "threads that wait": total - sum(terms.values())}, shared=shared)

    def _waiting(self) -> float:
        """Return the cycles that a product waits for weights as the left operand, which is not in panels."""
        plan = self.plan
        if not plan.is_constant(plan.contraction.left):
            return 0.0
        each = machine.UNASKED if self.params.lanes > _NARROW else machine.UNASKED_NARROW
        return plan.batch * plan.rows * plan.depth * each

    def stepping(self) -> float:
        """Return the cycles that tiles wait for a left operand whose steps along the depth are in different lines."""
        plan = self.plan
        step = plan.left_step
        if plan.left_packed or step == 1:
            return 0.0
        tiles = -(-plan.rows // plan.tile.height) * -(-plan.columns // plan.tile.width)
        far = step is None or step * machine.FLOAT_BYTES >= machine.PAGE_BYTES
        near = plan.steps_in_a_line if plan.left_in_place else 1
        return tiles * plan.depth * self._step_to_another_line(far) / near

    def _step_to_another_line(self, far: bool) -> float:
        plan = self.plan
        if self.params.lanes > _NARROW:
            return machine.OTHER_PAGE if far else machine.OTHER_LINE
        near, second, third = machine.OTHER_LINE_NARROW
        if (plan.rows + plan.tile.width) * plan.depth * machine.FLOAT_BYTES > self.params.panel_bytes:
            return third  # beside a panel
        if plan.depth * machine.LINE_BYTES > machine.NEAR_LINES_BYTES:
            return second
        return machine.OTHER_PAGE if far else near

    def _copying(self) -> float:
        plan = self.plan
        lanes = self.params.lanes
        right = plan.row_chunks.count * plan.depth * plan.columns * self.copy_of_right(plan.tile)
        left = plan.rows * plan.depth * self.copy_of_left
        store = machine.STORE_DOWN if plan.stores_down else self._copy(True, plan.output_run(False, lanes))
        stores = plan.rows * plan.columns * store
        return plan.batch * (right + left + stores)

    def _copy(self, packed: bool, run: int) -> float:
        """Return the cycles to pack one element, 0 if it is not packed."""
        return machine.SCALAR_COPY / min(run, self.params.lanes) if packed else 0.0

    @cached_property
    def copy_of_left(self) -> float:
        """Cycles to pack an element of the left operand; more where the next one of its row is in another line.

        It is 0 if the operand is not packed.
        """
        plan = self.plan
        b, m, k = fresh("b"), fresh("m"), fresh("k")
        walk = Walk({b: plan.batch, m: plan.rows, k: plan.depth})
        read = [each for each in loads(plan.left(b, m, k)) if uses(each, [m])]
        across = plan.left_packed and not any(walk.load_stride(each, k) == 1 for each in read)
        if plan.left_packed and plan.left_run > 1:
            return max(machine.SCALAR_COPY / plan.left_run, machine.VECTOR_COPY)
        return self._copy(plan.left_packed, 1) + (machine.FAR_COPY if across else 0.0)

    def copy_of_right(self, tile: Tile) -> float:
        """Return the cycles to pack an element of the right operand, 0 if it is not packed."""
        plan = self.plan
        if not plan.packs_right(tile):
            return 0.0
        fills = min(1.0, plan.depth * plan.columns * machine.FLOAT_BYTES / (self.params.panel_bytes * 1.5))
        far = machine.LINE_FAR * fills * min(1.0, plan.depth / _STREAMS)
        lines = tile.width * machine.FLOAT_BYTES / machine.LINE_BYTES + (
            plan.columns * machine.FLOAT_BYTES % machine.LINE_BYTES > 0
        )
        return self._copy(True, plan.right_run(self.params.lanes)) + lines * (machine.LINE_NEAR + far) / tile.width
