# SPDX-License-Identifier: Apache-2.0
"""The plan of a contraction: its orientation, register tile, operands to pack, and division into tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from tvm import ir

from ..core.plans import Price
from . import machine
from .cost import FAR_ROW, FAR_WEIGHT
from .gemm.chunks import Chunks
from .matmul_operands import ContractionOperands
from .matmul_tasks import TaskDivision, Tasks
from .matmul_work import MatmulWork
from .prefetch import UNROLLED
from .tile import Tile, column_tiles, is_narrow, row_tiles

# Threads, from which on each has few tiles of a product. Chosen: the times of docs/cpu.md (Products on many threads,
# 2026-11-27) are of 16; no others were kept.
_MANY = 8
# Tiles of a thread's only panel, and steps of a part of it that is prefetched. Chosen: the times of docs/cpu.md
# (Products on many threads, 2026-11-27) are of these; no others were kept.
_FEW_TILES, _PREFETCHED_STEPS = 32, 256
_LEAST_STEPS = 4  # steps along the depth, for a vector of them. Chosen: the smallest vector of all targets


@dataclass(frozen=True)
class MatmulChoice:
    """The choices for a contraction.

    Attributes
    ----------
    swapped : bool
        Rows and columns are exchanged.
    height, width : int
        The register tile, in rows and columns.
    lanes : int
        Columns of one vector.
    unroll : int
        Steps along the depth that are unrolled.
    row_parts, column_parts : int
        Chunks of rows and of columns; each pair is a task.
    parallel : bool
        Tasks run on several threads.
    left_packed, right_packed : bool
        The operand is copied first.
    tiles : bool
        It is computed in tiles of AMX (`quad_plan`).
    """

    swapped: bool
    height: int
    width: int
    lanes: int
    unroll: int
    row_parts: int
    column_parts: int
    parallel: bool
    left_packed: bool
    right_packed: bool
    tiles: bool = False


@dataclass(frozen=True, eq=False)
class MatmulPlan(ContractionOperands):
    """A contraction and the choices made for it.

    Attributes
    ----------
    width : int or None
        Columns of a panel, if they are given; a narrow product may have fewer all the same.
    """

    width: int | None = None

    def choice(self, swapped: bool) -> MatmulChoice:
        """Return the choices as numbers."""
        tile, packed = (self.tile.height, self.tile.width), (self.left_packed, self.right_packed)
        return MatmulChoice(swapped, *tile, self.params.lanes, self.unroll, *self.parts, self.parallel, *packed)

    @property
    def facts(self) -> dict[str, int]:
        """The facts that the choices depend on."""
        sizes = {"batch": self.batch, "rows": self.rows, "columns": self.columns, "depth": self.depth}
        return {**sizes, "constant": int(self.right_constant), **self.params.facts}

    @cached_property
    def work(self) -> MatmulWork:
        """The work, as the model of time counts it."""
        return MatmulWork(self)

    @property
    def price(self) -> Price:
        """The price of the work by its terms, in cycles of all threads together."""
        return self.work.whole.price

    # -- tile and tasks ----------------------------------------------------------------------------------------------

    @cached_property
    def division(self) -> TaskDivision:
        """The facts and costs that decide the register tile and the tasks."""
        params, panel_depth = self.params, self.depth
        if self.rows >= params.pack_reuse * max(params.tile_rows):
            # The depth is cut into parts, so a panel costs as much as one that fits in the nearer cache.
            panel_depth = min(self.depth, params.panel_bytes // (machine.FLOAT_BYTES * params.lanes))
        return TaskDivision(
            *(self.batch, self.rows, self.columns, self.depth, panel_depth, params),
            threads=params.cores if self.parallel else 1,
            near_rows=self._near_rows,
            left=self.work.copy_of_left,
            right=self.work.fetch_of_right,
            far=lambda tile: FAR_WEIGHT if self.packs_right(tile) else FAR_ROW,
            steps=self._steps_of,
            widths=(self.width,) if self.width else (),
        )

    @cached_property
    def tasks(self) -> Tasks:
        """The register tile and the tasks that are predicted to finish first."""
        return self.division.best()

    @cached_property
    def left_shared(self) -> bool:
        """Whether all threads copy the left operand once for all tasks, instead of each task for itself."""
        return self.division.shares_left(self.panel_chunks.count)

    def _near_rows(self, tile: Tile) -> int:
        """Return the number of rows that stay in the second-level cache."""
        return max(1, self.params.panel_bytes // (machine.FLOAT_BYTES * self._length_of(self._parts_of_depth(tile))))

    @property
    def tile(self) -> Tile:
        """The register tile."""
        return self.tasks.tile

    @property
    def parts(self) -> tuple[int, int]:
        """Number of chunks of rows and of columns."""
        return self.tasks.row_parts, self.tasks.column_parts

    @cached_property
    def panels(self) -> int:
        """Number of panels of full width."""
        return self.columns // self.tile.width

    @cached_property
    def tails(self) -> list[int]:
        """Widths of the narrower panels after those of full width."""
        return column_tiles(self.columns % self.tile.width, self.params)

    @cached_property
    def steps(self) -> int:
        """Steps along the depth that may form a vector where fewer columns remain than a vector has; 1 if none may.

        The left operand has to be contiguous along the depth. The right one is copied so that it is, too.
        """
        return self._steps_of(self.tile)

    def _steps_of(self, tile: Tile) -> int:
        single = self._lies_along_depth and len(self.contraction.depth) == 1
        if not self.packs_right(tile) or not (self.left_packed or single):
            return 1
        steps = gcd(self.depth, self.params.lanes)
        return steps if steps >= _LEAST_STEPS else 1

    # -- the depth ---------------------------------------------------------------------------------------------------

    @cached_property
    def depth_parts(self) -> int:
        """Number of parts of the depth; all tiles of a panel add up one part after the other, and keep sums between.

        A part of a panel of weights, which each tile reads again, stays in the second-level cache. A panel that is
        copied has no parts: the copy is in the cache already, and the left operand may be weights, which are better
        read without interruption.
        """
        parts = self._parts_of_depth(self.tile)
        return parts if parts > 1 else self._parts_to_prefetch

    @property
    def _parts_to_prefetch(self) -> int:
        """Number of parts of the depth where a thread reads only one panel: it prefetches a part during another."""
        weights, few = self.right_constant or self.in_panels, 1 < self.tiles_in_turn <= _FEW_TILES
        shared = self.parallel and self.params.cores >= _MANY
        if not weights or not few or not shared or self.panel_chunks.length > 1 or self.depth < 2 * _PREFETCHED_STEPS:
            return 1
        return self._parts_of_steps(_PREFETCHED_STEPS)

    def _parts_of_depth(self, tile: Tile) -> int:
        weights = self.right_constant or self.right_step_of(tile.width) == tile.width
        most = self.params.panel_bytes // (machine.FLOAT_BYTES * tile.width)
        again = self.rows >= self.params.pack_reuse * tile.height
        if not weights or not again or self.depth <= 2 * most:
            return 1
        return self._parts_of_steps(most)

    def _parts_of_steps(self, most: int) -> int:
        return -(-self.depth // self._length_of(-(-self.depth // most)))

    @property
    def part_length(self) -> int:
        """Steps of a part of the depth; the last part may be shorter."""
        return self._length_of(self.depth_parts)

    def _length_of(self, parts: int) -> int:
        unit = self.depth_unit
        return -(-self.depth // (unit * parts)) * unit

    @cached_property
    def unroll(self) -> int:
        """Steps along the depth that are unrolled: of the innermost iterator, where `left_in_place`."""
        reduction = self.contraction.reduction
        most = reduction.extents[self.contraction.depth[-1]] if self.left_in_place else self.depth
        return min(UNROLLED, most)

    @cached_property
    def depth_unit(self) -> int:
        """Steps that parts of the depth do not divide: those of all inner iterators, where `left_in_place`."""
        outer = self.contraction.reduction.extents[self.contraction.depth[0]] if self.left_in_place else self.depth
        return self.depth // outer

    # -- packing -----------------------------------------------------------------------------------------------------

    @cached_property
    def prefetch_rows(self) -> bool:
        """Whether a tile prefetches the next tile's rows: large ones along the depth, which may be weights."""
        large = self.rows * self.depth * machine.FLOAT_BYTES > self.params.panel_bytes // 4
        return large and self.right_packed and self._lies_along_depth

    @property
    def _lies_along_depth(self) -> bool:
        """Whether the left operand is a tensor that is read in place and is contiguous along the depth."""
        return isinstance(self.contraction.left, ir.TensorLoad) and not self.left_packed and self.left_step == 1

    def is_narrow(self, width: int) -> bool:
        """Whether the sums of a panel of this width are vectors along the depth."""
        return is_narrow(self.tile.height, width, self.params, self.depth, self.steps)

    @cached_property
    def right_packed(self) -> bool:
        """Whether the right operand is copied: unless it is contiguous, strided along the depth, and read a few times.

        An operand that is in panels, or will be (a constant, see `pack_weights`), is never copied.
        """
        return self.packs_right(self.tile)

    def packs_right(self, tile: Tile) -> bool:
        """Whether the right operand would be copied, given a register tile."""
        if self.right_constant:
            return False
        step = self.right_step_of(tile.width)
        return step is None or (step != tile.width and self.rows >= self.params.pack_reuse * tile.height)

    @property
    def right_step(self) -> int | None:
        """Elements between two rows of a panel of the right operand; None if its rows are not contiguous."""
        return self.right_step_of(self.tile.width)

    @property
    def in_panels(self) -> bool:
        """Whether the right operand is stored in panels."""
        return self.right_step == self.tile.width

    @property
    def right_lies_in_rows(self) -> bool:
        """Whether a row of a panel of the right operand is contiguous in memory and as long as whole cache lines."""
        right = self.contraction.right
        return (
            isinstance(right, ir.TensorLoad)
            and self.tile.width * machine.FLOAT_BYTES % machine.LINE_BYTES == 0
            and (self.right_run(self.tile.width) == self.tile.width)
        )

    # -- chunks of tasks ---------------------------------------------------------------------------------------------

    @cached_property
    def row_chunks(self) -> Chunks:
        """Row tiles per task."""
        return Chunks.of(self.rows // self.tile.height, self.parts[0])

    @cached_property
    def row_tiles(self) -> Chunks:
        """Tiles of full height in each chunk of rows; the last chunk has lower ones as well."""
        chunks = self.row_chunks
        return replace(chunks, last=sum(n for _, n, height in self._in_last_chunk if height == self.tile.height))

    @cached_property
    def last_tiles(self) -> list[tuple[int, int, int]]:
        """(first row, number, height) of the lower tiles at the end of the last chunk."""
        first = self.rows - self._rows_in_last_chunk
        return [(first + row, n, height) for row, n, height in self._in_last_chunk if height != self.tile.height]

    @property
    def tiles_in_turn(self) -> int:
        """Number of row tiles of a chunk, with which a panel is multiplied one after the other."""
        return self.row_chunks.length if self.row_chunks.count > 1 else sum(n for _, n, _ in self._in_last_chunk)

    @property
    def _rows_in_last_chunk(self) -> int:
        return self.rows - (self.row_chunks.count - 1) * self.row_chunks.length * self.tile.height

    @cached_property
    def _in_last_chunk(self) -> list[tuple[int, int, int]]:
        return row_tiles(self._rows_in_last_chunk, self.tile.height)

    @cached_property
    def panel_chunks(self) -> Chunks:
        """Panels of full width per task."""
        return self.division.panels(self.tile, self.parts[1])

    @cached_property
    def parallel(self) -> bool:
        """Whether the work is large enough to wake the threads."""
        return self.contraction.reduction.work >= self.params.serial_below


class GivenPlan(MatmulPlan):
    """A contraction with given choices, such as those of a tuner."""

    def __init__(self, plan: MatmulPlan, choice: MatmulChoice):
        super().__init__(plan.contraction, replace(plan.params, lanes=choice.lanes), plan.constants)
        # These replace the cached properties of the same names.
        vars(self).update(
            tasks=Tasks(Tile(choice.height, choice.width), choice.row_parts, choice.column_parts),
            unroll=choice.unroll,
            parallel=choice.parallel,
            left_packed=choice.left_packed,
            right_packed=choice.right_packed and not self.right_constant,
        )

    def packs_right(self, tile: Tile) -> bool:
        """Whether the right operand is copied, as it was given."""
        return self.right_packed
