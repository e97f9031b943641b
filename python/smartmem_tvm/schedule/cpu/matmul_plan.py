# SPDX-License-Identifier: Apache-2.0
"""The plan of a contraction: its orientation, register tile, operands to pack, and division into tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import gcd, prod

from tvm import ir, sym, tirx

from ...ir.blends import branches
from ...ir.index_map import variables
from ...ir.kernel import substitute
from ...ir.walk import loads
from ..core.expressions import Walk, choices, chooses_along, contiguous_run, fused_index, intervals, uses
from ..core.fused_contraction import FusedContraction
from ..core.nest import fresh
from ..core.plans import Price
from . import machine
from .chunks import Chunks
from .matmul_tasks import SURE, Division, Tasks
from .params import CpuParams
from .prefetch import UNROLLED
from .tile import Tile, column_tiles, is_narrow, row_tiles, total_cycles

_FLOAT_BYTES = machine.FLOAT_BYTES
_LINE_BYTES = machine.LINE_BYTES
_SCALAR_COPY = machine.SCALAR_COPY
_VECTOR_COPY = machine.VECTOR_COPY
_STORE_DOWN = machine.STORE_DOWN
_FAR_COPY = machine.FAR_COPY
_FETCH = machine.FETCH
_LINE_NEAR = machine.LINE_NEAR
_LINE_FAR = machine.LINE_FAR
_MANY = 8  # threads, from which on each has few tiles of a product
_FEW_TILES, _ASKED_STEPS = 32, 256  # tiles of a thread's only panel, and steps of a part of it that is prefetched
_STREAMS = 128  # rows read at the same time, from which on a processor no longer sees that each is read in order
_OTHER_LINE = machine.OTHER_LINE
_OTHER_LINE_NARROW = machine.OTHER_LINE_NARROW
_OTHER_PAGE = machine.OTHER_PAGE
_PAGE_BYTES = machine.PAGE_BYTES
_NARROW = 8  # lanes
_NEAR_BYTES = machine.NEAR_LINES_BYTES
_UNASKED = machine.UNASKED
_UNASKED_NARROW = machine.UNASKED_NARROW
_LEAST_IN_LINE = 3  # steps along the depth in one cache line, for windows to be read in place
_LEAST_STEPS = 4  # steps along the depth, for a vector of them
_FAR = machine.FAR_ROWS
_FAR_WEIGHT = machine.FAR_WEIGHT


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


@dataclass(frozen=True, eq=False)
class MatmulPlan(FusedContraction):
    """A contraction with fused batch, row, column and depth indices, and the choices made for it.

    Attributes
    ----------
    constants : tuple of buffer
        Inputs whose values are known at compile time.
    """

    params: CpuParams
    constants: tuple = ()

    def choice(self, swapped: bool) -> MatmulChoice:
        """Return the choices as numbers."""
        tile, packed = (self.tile.height, self.tile.width), (self.left_packed, self.right_packed)
        return MatmulChoice(swapped, *tile, self.params.lanes, self.unroll, *self.parts, self.parallel, *packed)

    @property
    def facts(self) -> dict[str, int]:
        """The facts that the choices depend on."""
        sizes = {"batch": self.batch, "rows": self.rows, "columns": self.columns, "depth": self.depth}
        return {**sizes, "constant": int(self.right_constant), **self.params.facts}

    # -- sizes ---------------------------------------------------------------------------------------------------

    @cached_property
    def division(self) -> Division:
        """The facts and costs that decide the register tile and the tasks."""
        params, panel_depth = self.params, self.depth
        if self.rows >= params.pack_reuse * max(params.tile_rows):
            # The depth is cut into parts, so a panel costs as much as one that fits in the nearer cache.
            panel_depth = min(self.depth, params.panel_bytes // (_FLOAT_BYTES * params.lanes))
        return Division(
            *(self.batch, self.rows, self.columns, self.depth, panel_depth, params),
            threads=params.cores if self.parallel else 1,
            near_rows=self._near_rows,
            left=self._copy_of_left,
            right=lambda tile: max(_FETCH, self._copy_of_right(tile)),
            far=lambda tile: (_FAR_WEIGHT if self._packs_right(tile) else _FAR) * tile.height,
            steps=self._steps_of,
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
        return max(1, self.params.panel_bytes // (_FLOAT_BYTES * self._length_of(self._parts_of_depth(tile))))

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
        if not self._packs_right(tile) or not (self.left_packed or single):
            return 1
        steps = gcd(self.depth, self.params.lanes)
        return steps if steps >= _LEAST_STEPS else 1

    @cached_property
    def depth_parts(self) -> int:
        """Number of parts of the depth; all tiles of a panel add up one part after the other, and keep sums between.

        A part of a panel of weights, which each tile reads again, stays in the second-level cache. A panel that is
        copied has no parts: the copy is in the cache already, and the left operand may be weights, which are better
        read without interruption.
        """
        parts = self._parts_of_depth(self.tile)
        return parts if parts > 1 else self._parts_to_ask_for

    @property
    def _parts_to_ask_for(self) -> int:
        """Number of parts of the depth where a thread reads only one panel: it prefetches a part during another."""
        weights, few = self.right_constant or self.in_panels, 1 < self.tiles_in_turn <= _FEW_TILES
        shared = self.parallel and self.params.cores >= _MANY
        if not weights or not few or not shared or self.panel_chunks.length > 1 or self.depth < 2 * _ASKED_STEPS:
            return 1
        return self._parts_of_steps(_ASKED_STEPS)

    def _parts_of_depth(self, tile: Tile) -> int:
        weights = self.right_constant or self._right_step(tile.width) == tile.width
        most = self.params.panel_bytes // (_FLOAT_BYTES * tile.width)
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

    @cached_property
    def rows_asked_for(self) -> bool:
        """Whether a tile prefetches the next tile's rows: large ones along the depth, which may be weights."""
        large = self.rows * self.depth * _FLOAT_BYTES > self.params.panel_bytes // 4
        return large and self.right_packed and self._lies_along_depth

    @property
    def _lies_along_depth(self) -> bool:
        """Whether the left operand is a tensor that is read in place and is contiguous along the depth."""
        return isinstance(self.contraction.left, ir.TensorLoad) and not self.left_packed and self.left_step == 1

    def is_narrow(self, width: int) -> bool:
        """Whether the sums of a panel of this width are vectors along the depth."""
        return is_narrow(self.tile.height, width, self.params, self.depth, self.steps)

    # -- the program at a point ------------------------------------------------------------------------------------

    def left(self, batch, row, depth):
        """Return the left operand at a point."""
        return substitute(self.contraction.left, self.point(batch, row, None, depth))

    def right(self, batch, column, depth):
        """Return the right operand at a point."""
        operand, dim = self.contraction.right, self._fused_dimension
        value = substitute(operand, self.point(batch, None, column, depth))
        if dim is None:
            return value
        return tirx.BufferLoad(operand.source, [depth if n == dim else at for n, at in enumerate(value.indices)])

    @cached_property
    def _fused_dimension(self) -> int | None:
        """The dimension of the right operand that is the fused depth, as in panels; its index needs no division."""
        right, depth = self.contraction.right, self.contraction.depth
        if not isinstance(right, ir.TensorLoad) or len(depth) < 2:
            return None
        fused, analyzer = fused_index(depth, self.contraction.reduction.extents), sym.Analyzer()
        found = (n for n, at in enumerate(right.indices) if analyzer.can_prove_equal(at, fused))
        return next(found, None)

    # -- packing -------------------------------------------------------------------------------------------------

    @cached_property
    def left_packed(self) -> bool:
        """Whether the left operand is copied: unless it is a plain load with an address per row plus one per step.

        A value behind a select is cheap to compute once, but expensive to compute again for each panel.
        """
        return not (self._left_walks or self._left_lies_apart)

    @cached_property
    def left_in_place(self) -> bool:
        """Whether each row of a tile has an address of its own, from which the offsets of the depth are the same."""
        return not self.left_packed and not self._left_walks

    @cached_property
    def _left_walks(self) -> bool:
        """Whether the left operand is a load with constant strides along the fused rows and depth."""
        b, m, k = fresh("b"), fresh("m"), fresh("k")
        walk, value = Walk({b: self.batch, m: self.rows, k: self.depth}), self.left(b, m, k)
        return all(walk.load_stride(value, v) is not None for v in (m, k))

    @cached_property
    def _left_lies_apart(self) -> bool:
        """Whether an element's address is that of its row plus an offset that all rows share: windows of an image."""
        steps = self._left_steps
        if steps is None or None in steps.values() or self._steps_in_a_line < _LEAST_IN_LINE:
            return False
        # Each panel reads these distant lines again, so those of a row have to stay in the cache.
        whole = self._steps_in_a_line * _FLOAT_BYTES >= _LINE_BYTES
        return whole or self.depth // self._steps_in_a_line * _LINE_BYTES <= _NEAR_BYTES

    @cached_property
    def left_run(self) -> int:
        """Steps of the innermost depth iterator along which all loads of the left operand are contiguous or constant.

        For joined tensors they are those of the smallest one. The result is 1 if there are none.
        """
        left, extents = self.contraction.left, self.contraction.reduction.extents
        walk, inner = Walk(extents), self.contraction.depth[-1:]
        if not inner or any(walk.load_stride(each, inner[0]) not in (0, 1) for each in loads(left)):
            return 1
        parts = intervals(left, inner[0], extents)
        joined = len(parts) > 1 and all(variables(condition) == [*inner] for condition, _, _ in choices(left))
        return min(length for _, length in parts) if joined or not branches(left) else 1

    @cached_property
    def _left_steps(self) -> dict | None:
        """Strides, in elements, of the left operand along the iterators of the depth; None if it is no load."""
        left, walk = self.contraction.left, Walk(self.contraction.reduction.extents)
        if not isinstance(left, ir.TensorLoad):
            return None
        return {var: walk.load_stride(left, var) for var in self.contraction.depth}

    @property
    def right_constant(self) -> bool:
        """Whether the right operand is read from one of the constants."""
        return self._is_constant(self.contraction.right)

    def _is_constant(self, operand) -> bool:
        return isinstance(operand, ir.TensorLoad) and any(operand.source.same_as(each) for each in self.constants)

    @cached_property
    def right_packed(self) -> bool:
        """Whether the right operand is copied: unless it is contiguous, strided along the depth, and read a few times.

        An operand that is in panels, or will be (a constant, see `pack_weights`), is never copied.
        """
        return self._packs_right(self.tile)

    def _packs_right(self, tile: Tile) -> bool:
        if self.right_constant:
            return False
        step = self._right_step(tile.width)
        return step is None or (step != tile.width and self.rows >= self.params.pack_reuse * tile.height)

    @property
    def right_step(self) -> int | None:
        """Elements between two rows of a panel of the right operand; None if its rows are not contiguous."""
        return self._right_step(self.tile.width)

    @cache  # noqa: B019 - a plan lives as long as its rule runs
    def _right_step(self, width: int) -> int | None:
        b, q, j, k = fresh("b"), fresh("q"), fresh("j"), fresh("k")
        walk = Walk({b: self.batch, q: max(1, self.columns // width), j: width, k: self.depth})
        value = self.right(b, q * width + j, k)
        return walk.load_stride(value, k) if walk.load_stride(value, j) == 1 else None

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
            and self.tile.width * _FLOAT_BYTES % _LINE_BYTES == 0
            and (self.right_run(self.tile.width) == self.tile.width)
        )

    @cache  # noqa: B019 - a plan lives as long as its rule runs
    def right_run(self, width: int) -> int:
        """Return the columns that are contiguous in all loads of the right operand, wherever a panel starts."""
        if chooses_along(self.contraction.right, self.contraction.columns):
            return 1
        b, k, j = fresh("b"), fresh("k"), fresh("j")
        moving = [n for n, each in enumerate(loads(self.right(b, j, k))) if uses(each, [j])]
        outer = {b: self.batch, k: self.depth}

        def run(number: int) -> int:
            def access(column):
                load = loads(self.right(b, column, k))[number]
                return load.source, load.indices

            return contiguous_run(access, self.columns, outer, width)

        return gcd(*map(run, moving)) if moving else 1

    def output_run(self, along_rows: bool, most: int) -> int:
        """Return the results that are contiguous in memory down the rows (or along the columns) of a tile."""
        b, other, reduction = fresh("b"), fresh("other"), self.contraction.reduction
        extents = {b: self.batch, other: self.columns if along_rows else self.rows}

        def access(at):
            point = self.point(b, at, other) if along_rows else self.point(b, other, at)
            return reduction.output, [substitute(i, point) for i in reduction.indices]

        return contiguous_run(access, self.rows if along_rows else self.columns, extents, most)

    @cached_property
    def stores_down(self) -> bool:
        """Whether the result is contiguous down the rows, and not along the columns."""
        return self.output_run(False, self.params.lanes) == 1 and self.output_run(True, 4) > 1

    def working(self) -> float:
        """Return the estimated cycles of multiplying and of moving data, by which an orientation is chosen.

        For example, the last of 49 columns may take as long as a whole vector. If the 49 are rows instead, all vectors
        are full, but results are stored one by one.
        """
        step = total_cycles(self.tile, self.rows, self.columns, self.params, self.depth, self.steps)
        multiplying = self.depth * step
        done = self.batch * (multiplying + self._stepping()) + self._copying() + self._waiting()
        return done * max(1.0, self.tasks.idle / SURE)

    @property
    def price(self) -> Price:
        """The result of `working` by its terms, in cycles of all threads together."""
        step = total_cycles(self.tile, self.rows, self.columns, self.params, self.depth, self.steps)
        terms = {
            "multiply-adds": self.batch * self.depth * step,
            "left operand across cache lines": self.batch * self._stepping(),
            "copies and stores": self._copying(),
            "weights from memory": self._waiting(),
        }
        total = self.working()
        shared = self.params.cores if self.parallel else 1
        return Price(total, {**terms, "threads that wait": total - sum(terms.values())}, shared=shared)

    def _waiting(self) -> float:
        """Return the cycles that a product waits for weights as the left operand, which is not in panels."""
        if not self._is_constant(self.contraction.left):
            return 0.0
        each = _UNASKED if self.params.lanes > _NARROW else _UNASKED_NARROW
        return self.batch * self.rows * self.depth * each

    def _stepping(self) -> float:
        """Return the cycles that tiles wait for a left operand whose steps along the depth are in different lines."""
        step = self.left_step
        if self.left_packed or step == 1:
            return 0.0
        tiles = -(-self.rows // self.tile.height) * -(-self.columns // self.tile.width)
        far = step is None or step * _FLOAT_BYTES >= _PAGE_BYTES
        near = self._steps_in_a_line if self.left_in_place else 1
        return tiles * self.depth * self._step_to_another_line(far) / near

    @cached_property
    def _steps_in_a_line(self) -> int:
        """Steps along the depth in the same cache line of the left operand, for windows that are read in place."""
        line = _LINE_BYTES // _FLOAT_BYTES
        steps, extents = self._left_steps, self.contraction.reduction.extents
        return min(line, prod(extents[var] for var, step in steps.items() if abs(step) < line))

    def _step_to_another_line(self, far: bool) -> float:
        if self.params.lanes > _NARROW:
            return _OTHER_PAGE if far else _OTHER_LINE
        near, second, third = _OTHER_LINE_NARROW
        if (self.rows + self.tile.width) * self.depth * _FLOAT_BYTES > self.params.panel_bytes:
            return third  # beside a panel
        if self.depth * _LINE_BYTES > _NEAR_BYTES:
            return second
        return _OTHER_PAGE if far else near

    @cached_property
    def left_step(self) -> int | None:
        """Stride, in elements, of the left operand along the fused depth; None if it varies."""
        b, m, k = fresh("b"), fresh("m"), fresh("k")
        walk = Walk({b: self.batch, m: self.rows, k: self.depth})
        return walk.load_stride(self.left(b, m, k), k)

    def _copying(self) -> float:
        lanes = self.params.lanes
        right = self.row_chunks.count * self.depth * self.columns * self._copy_of_right(self.tile)
        left = self.rows * self.depth * self._copy_of_left
        store = _STORE_DOWN if self.stores_down else self._copy(True, self.output_run(False, lanes))
        stores = self.rows * self.columns * store
        return self.batch * (right + left + stores)

    @cached_property
    def _copy_of_left(self) -> float:
        """Cycles to pack an element of the left operand; more where the next one of its row is in another line.

        It is 0 if the operand is not packed.
        """
        b, m, k = fresh("b"), fresh("m"), fresh("k")
        walk = Walk({b: self.batch, m: self.rows, k: self.depth})
        read = [each for each in loads(self.left(b, m, k)) if uses(each, [m])]
        across = self.left_packed and not any(walk.load_stride(each, k) == 1 for each in read)
        if self.left_packed and self.left_run > 1:
            return max(_SCALAR_COPY / self.left_run, _VECTOR_COPY)
        return self._copy(self.left_packed, 1) + (_FAR_COPY if across else 0.0)

    # -- tasks ---------------------------------------------------------------------------------------------------

    def _copy(self, packed: bool, run: int) -> float:
        """Return the cycles to pack one element, 0 if it is not packed."""
        return _SCALAR_COPY / min(run, self.params.lanes) if packed else 0.0

    def _copy_of_right(self, tile: Tile) -> float:
        """Return the cycles to pack an element of the right operand, 0 if it is not packed."""
        if not self._packs_right(tile):
            return 0.0
        fills = min(1.0, self.depth * self.columns * _FLOAT_BYTES / (self.params.panel_bytes * 1.5))
        far = _LINE_FAR * fills * min(1.0, self.depth / _STREAMS)
        lines = tile.width * _FLOAT_BYTES / _LINE_BYTES + (self.columns * _FLOAT_BYTES % _LINE_BYTES > 0)
        return self._copy(True, self.right_run(self.params.lanes)) + lines * (_LINE_NEAR + far) / tile.width

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

    def _packs_right(self, tile: Tile) -> bool:
        return self.right_packed
