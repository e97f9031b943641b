# SPDX-License-Identifier: Apache-2.0
"""The plan of a product of bytes on AMX: its blocks, its tasks, and its work."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ...ir.packings import QUADS
from ..core.contraction import Contraction
from ..core.expressions import Walk
from ..core.nest import fresh
from ..core.plans import Price
from .cost import AMX_START, SUMS, TILE_PRODUCT
from .gemm.amx import SIDE
from .gemm.amx_block import SPAN
from .gemm.micro_kernels import AMX_BYTES, micro_kernel
from .matmul_plan import MatmulChoice, MatmulPlan
from .matmul_tasks import Tasks
from .priced_work import Work
from .tile import Tile

# Least quads along the depth of a tile. Chosen: a product of tiles takes as long for fewer, and vectors are faster.
_LEAST_DEPTH = 4
# Bytes of copied rows that a task keeps in its second-level cache. Chosen: a quarter of that of processors with AMX.
_KEPT_BYTES = 512 * 1024
INTEGER_BYTES = 4
"""Bytes of a quad, and of a sum: by definition of int32."""


class QuadPlan(MatmulPlan):
    """A contraction of quads of bytes on AMX, in blocks of 32 x 32 results, or of 32 x 16.

    `beside` is the plan on the vector unit.
    """

    beside: MatmulPlan

    @classmethod
    def of(cls, plan: MatmulPlan) -> QuadPlan | None:
        """Return the plan of a contraction on AMX, None if it has no such plan."""
        contraction, params = plan.contraction, plan.params
        packing = contraction.packing
        if packing is None or packing.numbers != QUADS.numbers or not (contraction.rows and contraction.columns):
            return None
        if micro_kernel(QUADS.name, params) is not AMX_BYTES:
            return None
        found = cls(_along_memory(contraction), params, plan.constants)
        vars(found)["beside"] = plan
        return found if found.tile_depth >= _LEAST_DEPTH and (found.right_constant or found.in_panels) else None

    def given(self, choice: MatmulChoice) -> QuadPlan:
        """Return the plan with the tasks of a choice."""
        found = QuadPlan(self.contraction, self.params, self.constants)
        tasks = Tasks(self.tile, choice.row_parts, choice.column_parts)
        vars(found).update(beside=self.beside, tasks=tasks, parallel=choice.parallel)
        return found

    def choice(self, swapped: bool) -> MatmulChoice:
        """Return the choices as numbers; the register tile is that of `beside`, for a tuner that leaves tiles out."""
        parts = {"row_parts": self.tasks.row_parts, "column_parts": self.tasks.column_parts, "parallel": self.parallel}
        packed = {"left_packed": self.left_packed, "right_packed": False}
        return replace(self.beside.choice(swapped), **parts, **packed, tiles=True)

    # -- tiles and tasks -------------------------------------------------------------------------------------------

    @cached_property
    def tile(self) -> Tile:
        """Rows and columns of a block of results."""
        return Tile(SPAN, SPAN if self.columns > SIDE else SIDE)

    @cached_property
    def tile_depth(self) -> int:
        """Quads along the depth of a tile: as many as divide the depth."""
        return next(size for size in range(SIDE, 0, -1) if self.depth % size == 0)

    @property
    def tile_steps(self) -> int:
        """Tiles along the depth."""
        return self.depth // self.tile_depth

    @cached_property
    def tasks(self) -> Tasks:
        """The tasks: as many as threads want, of rows first, and so many that copied rows stay in the cache."""
        wanted = self.params.tasks if self.parallel else 1
        copied = self.rows * self.depth * INTEGER_BYTES if self.left_packed else 0
        most = max(1, self.rows // SPAN)
        rows = min(most, max(wanted, -(-copied // _KEPT_BYTES)))
        return Tasks(self.tile, rows, min(max(1, self.columns // self.tile.width), -(-wanted // rows)))

    @cached_property
    def tails(self) -> list[int]:
        """The columns after the panels of full width; panels are padded to that width."""
        rest = self.columns % self.tile.width
        return [rest] if rest else []

    def is_narrow(self, _: int) -> bool:
        """Whether the sums of a panel are vectors along the depth: never."""
        return False

    # -- operands --------------------------------------------------------------------------------------------------

    @cached_property
    def left_row_step(self) -> int | None:
        """Words from a row of the left operand to the next in memory; None if it varies."""
        b, m, k = fresh("b"), fresh("m"), fresh("k")
        walk = Walk({b: self.batch, m: self.rows, k: self.depth})
        return walk.load_stride(self.left(b, m, k), m)

    @cached_property
    def left_packed(self) -> bool:
        """Whether rows are copied: unless they have a constant stride, and each is contiguous along the depth."""
        return self.rows < SIDE or self.left_step != 1 or self.left_row_step is None

    left_shared = False
    steps = unroll = depth_parts = 1

    def packs_right(self, _: Tile) -> bool:
        """Whether the right operand would be copied: it is in panels, or will be."""
        return False

    # -- work ------------------------------------------------------------------------------------------------------

    @property
    def price(self) -> Price:
        """The price of the whole product, of all threads together."""
        tiles = self.batch * -(-self.rows // SIDE) * -(-self.columns // SIDE)
        parts = {
            "requesting AMX": [(1, AMX_START)],
            "products of tiles": [(tiles * self.tile_steps, TILE_PRODUCT)],
            "sums in memory": [(tiles * SIDE, SUMS)],
            "copies and stores": self.work.copies(),
        }
        return Work(self.params, parts, shared=self.params.cores if self.parallel else 1).price


def _along_memory(contraction: Contraction) -> Contraction:
    """Return a contraction whose depth is in the order of the left operand's memory, so that runs are long."""
    walk, reduction = Walk(contraction.reduction.extents), contraction.reduction
    steps = {var: walk.load_stride(contraction.left, var) for var in contraction.depth}
    if None in steps.values():
        return contraction
    order = tuple(sorted(contraction.depth, key=lambda var: -abs(steps[var])))
    return replace(contraction, reduction=replace(reduction, reduce=order))
