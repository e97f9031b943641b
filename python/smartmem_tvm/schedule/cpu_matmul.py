# SPDX-License-Identifier: Apache-2.0
"""Matmul, batched matmul and convolution on a CPU: register tiles over packed panels.

    parallel for (batch, row chunk, column chunk):
      left[rows, depth] = ...                      only if it is not a plain walk along depth
      for each panel of `width` columns:
        right[depth, width] = ...                  contiguous, read again by every tile of the chunk
        for each tile of `height` rows:
          acc[height, width] = 0                   registers
          for k in depth: acc[i, j] += left[i, k] * right[k, j]
          out[f(i, j)] = finish(acc[i, j])         while it is hot

Folded layout operators, padding and prologue arithmetic are evaluated in the packing loops, once per panel, not once
per multiplication. Row and column remainders have tiles of their own, so that no loop carries a predicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm import ir, tirx

from ..analysis.kernel import Kernel, substitute
from .contraction import Contraction, contraction_of
from .expressions import Walk, contiguous_run, fresh, has_select, size, split_index
from .nest import PARALLEL, UNROLL, VECTOR, Scope, allocate, block, index, scratch, split_work, store
from .params import CpuParams
from .reduction import reduction_of
from .rule import CpuRule
from .tile import Tile, best_tile, column_tiles

_SMALL_FINISH = 12  # nodes: an epilogue up to this size is done on the registers


class Matmul(CpuRule):
    """The rule for contractions that have rows and columns."""

    def lower(self, kernel: Kernel, params: CpuParams) -> tirx.Stmt | None:
        """Schedule the kernel, or None if it is no contraction."""
        reduction = reduction_of(kernel)
        contraction = contraction_of(reduction) if reduction is not None else None
        if contraction is None or not contraction.rows or not contraction.columns:
            return None
        ways = [_Emitter(contraction, params), _Emitter(contraction.swapped(), params)]
        return min(ways, key=lambda way: way.copying()).kernel()


def _copy_cycles(run: int, params: CpuParams) -> float:
    """Cycles to move one element: a vector at a time where `run` elements are contiguous, else one by one."""
    return 1.5 / min(run, params.lanes)


@dataclass(eq=False)
class _Emitter:
    contraction: Contraction
    params: CpuParams

    def __post_init__(self):
        c = self.contraction
        self.batch, self.rows, self.columns, self.depth = (
            c.extent(group) for group in (c.batch, c.rows, c.columns, c.depth)
        )
        self.scope = Scope()
        self.tile: Tile = best_tile(self.rows, self.columns, self.params)
        self.panels = self.columns // self.tile.width
        self.tails = column_tiles(self.columns % self.tile.width, self.params)

    # -- operands at a point -------------------------------------------------------------------------------------

    def _point(self, batch=None, row=None, column=None, depth=None) -> dict:
        c, point = self.contraction, {}
        groups = ((c.batch, batch), (c.rows, row), (c.columns, column), (c.depth, depth))
        for vars_, flat in groups:
            if flat is not None:
                point.update(split_index(flat, vars_, c.reduction.extents))
        return point

    def _left(self, batch, row, depth):
        return substitute(self.contraction.left, self._point(batch, row, None, depth))

    def _right(self, batch, column, depth):
        return substitute(self.contraction.right, self._point(batch, None, column, depth))

    @cached_property
    def left_packed(self) -> bool:
        """The left operand must be copied unless it is a plain load that walks along the fused depth."""
        b, m, k = fresh("b"), fresh("m"), fresh("k")
        walk = Walk({b: self.batch, m: self.rows, k: self.depth})
        return walk.load_stride(self._left(b, m, k), k) is None

    @cached_property
    def right_packed(self) -> bool:
        """The right operand is copied unless it is contiguous, walks along the depth, and is read only a few times."""
        b, q, j, k = fresh("b"), fresh("q"), fresh("j"), fresh("k")
        width = self.tile.width
        walk = Walk({b: self.batch, q: max(1, self.panels), j: width, k: self.depth})
        value = self._right(b, q * width + j, k)
        direct = walk.load_stride(value, j) == 1 and walk.load_stride(value, k) is not None
        return not direct or self.rows >= self.params.pack_reuse * self.tile.height

    def _right_run(self, width: int) -> int:
        """Columns that lie next to each other in the right operand wherever a panel starts."""
        b, k = fresh("b"), fresh("k")

        def access(column):
            value = self._right(b, column, k)
            return (value.source, value.indices) if isinstance(value, ir.TensorLoad) else None

        return contiguous_run(access, self.columns, {b: self.batch, k: self.depth}, width)

    def _output_run(self, along_rows: bool, width: int) -> int:
        """Results that lie next to each other in memory along a row (or a column) of the tile."""
        b, other, reduction = fresh("b"), fresh("other"), self.contraction.reduction
        extents = {b: self.batch, other: self.columns if along_rows else self.rows}

        def access(at):
            point = self._point(b, at, other) if along_rows else self._point(b, other, at)
            return reduction.output, [substitute(i, point) for i in reduction.indices]

        return contiguous_run(access, self.rows if along_rows else self.columns, extents, width)

    def copying(self) -> float:
        """Estimated cycles spent on moving data: what tells an orientation from the other."""
        p = self.params
        right = self.rows_chunks_estimate() * self.depth * self.columns * _copy_cycles(self._right_run(p.lanes), p)
        left = self.rows * self.depth * _copy_cycles(1, p) if self.left_packed else 0
        run = self._output_run(False, p.lanes)
        stores = self.rows * self.columns * _copy_cycles(run, p)
        return self.batch * ((right if self.right_packed else 0) + left + stores)

    def rows_chunks_estimate(self) -> int:
        """How often each panel is packed."""
        return -(-self.rows * self.depth * 4 // self.params.panel_bytes)

    # -- work ----------------------------------------------------------------------------------------------------

    def _chunks(self) -> tuple[int, int, int, int]:
        """(rows per task, row chunks, panels per task, column chunks)."""
        p, tile = self.params, self.tile
        tiles, panels = max(1, self.rows // tile.height), max(1, self.panels)
        fit = max(8 * tile.height, p.panel_bytes // (4 * self.depth))
        row_parts, column_parts = -(-self.rows // fit), 1
        wanted = p.cores * p.tasks_per_core
        if self.left_packed:
            row_parts = max(row_parts, min(tiles // 4, -(-wanted // self.batch)))
        column_parts = min(panels, max(1, -(-wanted // (self.batch * max(1, row_parts)))))
        if not self.left_packed:
            row_parts = max(row_parts, min(tiles // 4, -(-wanted // (self.batch * column_parts))))
        tiles_per, row_chunks = split_work(tiles, row_parts)
        panels_per, column_chunks = split_work(panels, column_parts)
        return tiles_per * tile.height, row_chunks, panels_per, column_chunks

    def kernel(self) -> tirx.Stmt:
        """The whole nest."""
        rows_per, row_chunks, panels_per, column_chunks = self._chunks()
        tasks = self.batch * row_chunks * column_chunks
        self.rows_per, self.row_chunks = rows_per, row_chunks
        self.panels_per, self.column_chunks = panels_per, column_chunks
        parallel = tasks > 1 and self.contraction.reduction.work >= self.params.serial_below
        kind = PARALLEL if parallel else tirx.ForKind.SERIAL
        return self.scope.loop(tasks, self._task, "task", kind)

    def _task(self, task) -> tirx.Stmt:
        chunks = index(self.row_chunks * self.column_chunks)
        batch = tirx.floordiv(task, chunks)
        row_chunk = tirx.floordiv(tirx.floormod(task, chunks), index(self.column_chunks))
        column_chunk = tirx.floormod(task, index(self.column_chunks))
        simplify = self.scope.analyzer.simplify
        return self._row_chunk(simplify(batch), simplify(row_chunk), simplify(column_chunk))

    def _row_chunk(self, batch, row_chunk, column_chunk) -> tirx.Stmt:
        first = row_chunk * self.rows_per
        if not self.left_packed:
            left = self._left
            return self._panels(batch, row_chunk, column_chunk, lambda row, k: left(batch, row, k))
        last = self.row_chunks - 1
        longest = max(self.rows_per, self.rows - last * self.rows_per)
        packed = scratch([longest, self.depth], self.contraction.left.ty.dtype, "left")
        count = self._rows_of(row_chunk, self.rows)
        pack = self.scope.loop(
            count, lambda r: self._pack_row(packed, r, batch, first + r), "row", most=longest
        )
        panels = self._panels(batch, row_chunk, column_chunk, lambda row, k: packed[row - first, k])
        return allocate([packed], block(pack, panels))

    def _rows_of(self, row_chunk, rows: int):
        """Rows of a chunk: all of them `rows_per`, but for the last one, which takes the rest."""
        last = self.row_chunks - 1
        rest = rows - last * self.rows_per
        if last == 0:
            return rows
        if rest == self.rows_per:
            return self.rows_per
        return tirx.if_then_else(row_chunk < index(last), index(self.rows_per), index(rest))

    def _pack_row(self, packed, at, batch, row) -> tirx.Stmt:
        return self._over_depth(
            lambda k, point: store(
                packed, substitute(self.contraction.left, {**self._point(batch, row), **point}), at, k
            )
        )

    def _over_depth(self, body) -> tirx.Stmt:
        """Loops over the single depth iterators: no division to find them; `body` takes the fused index as well."""
        depth, extents = self.contraction.depth, self.contraction.reduction.extents

        def nest(level: int, flat, point: dict) -> tirx.Stmt:
            if level == len(depth):
                return self.scope.simplify(body(flat, point))
            var = depth[level]
            return self.scope.loop(
                extents[var],
                lambda v: nest(level + 1, flat * index(extents[var]) + v, {**point, var: v}),
                f"k{level}",
            )

        return nest(0, index(0), {})

    # -- columns -------------------------------------------------------------------------------------------------

    def _panels(self, batch, row_chunk, column_chunk, left) -> tirx.Stmt:
        width, last = self.tile.width, self.column_chunks - 1
        rest = self.panels - last * self.panels_per
        count = rest if last == 0 else self.panels_per
        if last > 0 and rest != self.panels_per:
            count = tirx.if_then_else(column_chunk < index(last), index(self.panels_per), index(rest))
        statements = []
        if self.panels:
            statements.append(
                self.scope.loop(
                    count,
                    lambda p: self._panel(
                        batch, row_chunk, (column_chunk * self.panels_per + p) * index(width), width, left
                    ),
                    "panel",
                    most=max(rest, self.panels_per),
                )
            )
        first, tail = self.panels * width, []
        for tail_width in self.tails:
            tail.append(self._panel(batch, row_chunk, index(first), tail_width, left))
            first += tail_width
        if tail and last > 0:
            tail = [tirx.IfThenElse(column_chunk.equal(index(last)), block(*tail), None)]
        return block(*statements, *tail)

    def _panel(self, batch, row_chunk, column, width: int, left) -> tirx.Stmt:
        if not self.right_packed:
            return self._tiles(
                batch, row_chunk, column, width, left, lambda k, j: self._right(batch, column + j, k)
            )
        packed = scratch([self.depth, width], self.contraction.right.ty.dtype, "right")
        pack = self._pack_panel(packed, batch, column, width)
        tiles = self._tiles(batch, row_chunk, column, width, left, lambda k, j: packed[k, j])
        return allocate([packed], block(pack, tiles))

    def _pack_panel(self, packed, batch, column, width: int) -> tirx.Stmt:
        right, run = self.contraction.right, self._right_run(width)

        def copy(j):
            return lambda k, point: store(
                packed, substitute(right, {**self._point(batch, None, column + j), **point}), k, j
            )

        if run == 1:  # one column after the other: its place in memory is worked out once
            return self.scope.loop(width, lambda j: self._over_depth(copy(j)), "j")

        def row(k, point):
            return self.scope.loop(
                width // run,
                lambda r: self.scope.loop(
                    run, lambda j: self.scope.simplify(copy(r * run + j)(k, point)), "j", VECTOR
                ),
                "r",
                UNROLL,
            )

        return self._over_depth(row)

    # -- tiles ---------------------------------------------------------------------------------------------------

    def _tiles(self, batch, row_chunk, column, width: int, left, right) -> tirx.Stmt:
        height, last = self.tile.height, self.row_chunks - 1
        first, whole = row_chunk * self.rows_per, self.rows // height * height
        most = max(self.rows_per, whole - last * self.rows_per) // height
        statements = []
        if whole:
            count = self._rows_of(row_chunk, whole)
            count = count // height if isinstance(count, int) else tirx.floordiv(count, index(height))
            statements.append(
                self.scope.loop(
                    self.scope.analyzer.simplify(count) if not isinstance(count, int) else count,
                    lambda t: self._tile(batch, first + t * index(height), column, height, width, left, right),
                    "tile",
                    most=most,
                )
            )
        if self.rows > whole:
            tail = self._tile(batch, index(whole), column, self.rows - whole, width, left, right)
            if last > 0:
                tail = tirx.IfThenElse(row_chunk.equal(index(last)), tail, None)
            statements.append(tail)
        return block(*statements)

    def _tile(self, batch, row, column, height: int, width: int, left, right) -> tirx.Stmt:
        reduction = self.contraction.reduction
        acc = scratch([height * width], reduction.accumulator.ty.dtype, "acc")

        def each(body, rows=UNROLL):
            return self.scope.loop(height, lambda i: self._vectors(width, lambda j: body(i, j)), "i", rows)

        def add(k):
            return each(
                lambda i, j: store(acc, acc[i * width + j] + left(row + i, k) * right(k, j), i * width + j)
            )

        start = each(lambda i, j: store(acc, reduction.init, i * width + j))
        total = self.scope.loop(self.depth, add, "k")
        transposed = self._output_run(False, self.params.lanes) == 1 and self._output_run(True, height) > 1
        small = size(reduction.finish) <= _SMALL_FINISH and not has_select(reduction.finish)
        if small and not transposed:
            finish = each(
                lambda i, j: reduction.store(acc[i * width + j], self._point(batch, row + i, column + j))
            )
            return allocate([acc], block(start, total, finish))
        # leave the registers first: a loop that indexes the accumulators would keep them in memory all along
        done = scratch([height, width], acc.ty.dtype, "done")
        spill = each(lambda i, j: store(done, acc[i * width + j], i, j))

        def at_point(i, j):
            point = self._point(batch, row + i, column + j)
            return self.scope.simplify(reduction.store(done[i, j], point))

        if transposed:
            finish = self.scope.loop(width, lambda j: self.scope.loop(height, lambda i: at_point(i, j), "i"), "j")
            return allocate([acc, done], block(start, total, spill, finish))

        def finish_row(i):
            def at(j):
                return at_point(i, j)

            if has_select(reduction.finish):
                return self.scope.loop(width, at, "j")
            return self._vectors(width, at)

        finish = self.scope.loop(height, finish_row, "i")
        return allocate([acc, done], block(start, total, spill, finish))

    def _vectors(self, width: int, body) -> tirx.Stmt:
        """`width` columns as whole vectors, or as one short vector."""
        lanes = min(self.params.lanes, width)
        return self.scope.loop(
            width // lanes,
            lambda v: self.scope.loop(
                lanes, lambda j: self.scope.simplify(body(v * index(lanes) + j)), "j", VECTOR
            ),
            "v",
            UNROLL,
        )


__all__ = ["Matmul", "ir"]
