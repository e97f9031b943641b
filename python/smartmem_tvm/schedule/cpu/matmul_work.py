# SPDX-License-Identifier: Apache-2.0
"""The work of a contraction, as the model of time counts it: steps of register tiles, copies, lines, weights."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ...ir.walk import loads
from ..core.expressions import Walk, uses
from ..core.nest import fresh
from . import machine
from .cost import STORED_DOWN, Copied, Fetched, OtherLine, Unasked
from .matmul_tasks import SURE
from .priced_work import Done, Work, WorkUnit
from .tile import Tile, steps_of

if TYPE_CHECKING:
    from .matmul_plan import MatmulPlan

# Rows read at the same time, from which on a processor no longer sees that each is read in order: assumed
# (2026-11-26).
_STREAMS = 128
_TOGETHER = 2  # elements of a left operand copied together, whose vectors come from the second-level cache: assumed


class MatmulWork:
    """The work of a plan, of all threads together."""

    def __init__(self, plan: MatmulPlan):
        self.plan, self.params = plan, plan.params

    @property
    def whole(self) -> Work:
        """All work, by which an orientation is chosen.

        For example, the last of 49 columns may take as long as a whole vector. If the 49 are rows instead, all vectors
        are full, but results are stored one by one.
        """
        plan = self.plan
        sizes = plan.tile, plan.rows, plan.columns
        parts = {
            "multiply-adds": steps_of(*sizes, self.params, plan.depth, plan.steps, plan.batch * plan.depth),
            "left operand across cache lines": self._lines(),
            "copies and stores": self.copies(),
            "weights from memory": self._weights(),
        }
        waits = {"threads that wait": max(1.0, plan.tasks.idle / SURE) - 1.0}
        return Work(self.params, parts, waits, self.params.cores if plan.parallel else 1)

    def _weights(self) -> list[Done]:
        """Return the weights that are the left operand, which is not in panels."""
        plan = self.plan
        number = plan.batch * plan.rows * plan.depth
        return [(number, Unasked())] if plan.is_constant(plan.contraction.left) else []

    def _lines(self) -> list[Done]:
        """Return the steps of a left operand whose steps along the depth are in different lines."""
        plan = self.plan
        step = plan.left_step
        if plan.left_packed or step == 1:
            return []
        tiles = -(-plan.rows // plan.tile.height) * -(-plan.columns // plan.tile.width)
        page = step is None or step * machine.FLOAT_BYTES >= machine.PAGE_BYTES
        near = plan.steps_in_a_line if plan.left_in_place else 1
        return [(plan.batch * tiles * plan.depth / near, OtherLine(self._level_of_lines(), page))]

    def _level_of_lines(self) -> int:
        """Return the level of the cache that holds the lines of a tile's steps, beside a panel; 3 if none does."""
        plan = self.plan
        if (plan.rows + plan.tile.width) * plan.depth * machine.FLOAT_BYTES > self.params.panel_bytes:
            return 3
        return 2 if plan.depth * machine.LINE_BYTES > machine.NEAR_LINES_BYTES else 1

    def copies(self) -> list[Done]:
        """Return the elements of operands that are copied, and of results."""
        plan = self.plan
        right, left = self.copy_of_right(plan.tile), self.copy_of_left
        copies = [(plan.row_chunks.count * plan.depth * plan.columns, right), (plan.rows * plan.depth, left)]
        store = STORED_DOWN if plan.stores_down else Copied(plan.output_run(False, self.params.lanes))
        done = [*copies, (plan.rows * plan.columns, store)]
        return [(plan.batch * number, unit) for number, unit in done if unit is not None]

    @cached_property
    def copy_of_left(self) -> WorkUnit | None:
        """An element of the left operand that is packed; None if it is not.

        It reads a line of its own where the next one of its row is in another line.
        """
        plan = self.plan
        if not plan.left_packed:
            return None
        b, m, k = fresh("b"), fresh("m"), fresh("k")
        walk = Walk({b: plan.batch, m: plan.rows, k: plan.depth})
        read = [each for each in loads(plan.left(b, m, k)) if uses(each, [m])]
        if plan.left_run > 1:
            return Copied(_TOGETHER)
        return Copied(1, lines=float(not any(walk.load_stride(each, k) == 1 for each in read)))

    def copy_of_right(self, tile: Tile) -> Copied | None:
        """Return an element of the right operand that is packed, or None if it is not."""
        plan = self.plan
        if not plan.packs_right(tile):
            return None
        line = machine.LINE_BYTES // machine.FLOAT_BYTES
        fills = min(1.0, plan.depth * plan.columns * machine.FLOAT_BYTES / (self.params.panel_bytes * 1.5))
        lines = tile.width / line + (plan.columns % line > 0)
        far = fills * min(1.0, plan.depth / _STREAMS)
        return Copied(plan.right_run(self.params.lanes), lines / tile.width, far)

    def fetch_of_right(self, tile: Tile) -> Fetched:
        """Return an element of the right operand that a task reads for the first time."""
        return Fetched(self.copy_of_right(tile))
