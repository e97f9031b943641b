# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of multiply-adds along the depth: for fewer columns than a vector has.

    acc[height * width, steps] = 0                                  registers
    for q: acc[i, j] += left[i, q * steps + lane] * right[q * steps + lane, j]
    result = finish(start + sum over lanes of acc[i, j])

Both operands are read in vectors along the depth: the left one has to be contiguous along it, and the right one is
copied so that it is, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from ...core.nest import UNROLL, VECTOR, Scope, allocate, block, index, scratch, store
from ..params import CpuParams
from ..tile import narrow_rows, row_tiles
from .accumulators import Accumulators
from .axis import Strip
from .epilogue import Epilogue
from .gemm import WriteTile
from .operands import DepthStep, Reader, Source


@dataclass(frozen=True, eq=False)
class NarrowKernel:
    """The micro-kernel with its operands; `FmaKernel` explains the attributes that both have.

    Attributes
    ----------
    depth, steps : int
        Steps of the whole depth, and of a vector.
    dots : callable or None
        ``(accumulators, left, right) -> statement`` as of `FmaKernel`, of vectors along the depth.
    """

    scope: Scope
    params: CpuParams
    dtype: str
    left: Reader
    right: Source
    depth: int
    steps: int
    epilogue: Epilogue
    times: Callable
    dots: Callable[[Accumulators, Callable, Callable], tirx.Stmt | None] | None = None

    def sweep(self, outer: Strip, each: Callable[[WriteTile], tirx.Stmt]) -> tirx.Stmt:
        """Return the tiles of a panel, after its copy."""
        right = self.right.of(outer)
        return right.allocated(each(lambda rows, columns: self.tile(rows, columns, right)))

    def tile(self, rows: Strip, columns: Strip, right: Reader) -> tirx.Stmt:
        """Return one tile."""
        left = self.left.of(rows)
        done = scratch([rows.size, columns.size], self.dtype, "done")
        sums = [
            self.scope.loop(
                count,
                lambda t, f=first, h=high: self._add_up(rows, columns, index(f) + t * index(h), h, left, right, done),
                "part",
            )
            for first, count, high in row_tiles(rows.size, narrow_rows(columns.size, self.params))
        ]
        prefetch = self.epilogue.prefetched(rows, columns)
        whole = block(prefetch, *sums, self.epilogue.block(done, rows, columns))
        return allocate([done], left.allocated(whole))

    def _add_up(self, rows: Strip, columns: Strip, first, height: int, left: Reader, right: Reader, done) -> tirx.Stmt:
        """Return the statements that write `height` rows of sums, from row `first` of the tile on, into `done`."""
        steps, width, across = self.steps, columns.size, index(columns.size)
        acc = Accumulators(self.scope, height * width, steps, steps, self.dtype)
        lanes = scratch([height, width, steps], self.dtype, "lanes")

        def add(q) -> tirx.Stmt:
            def of_left(i, j):
                return left.at(rows, DepthStep(q * index(steps) + j))(first + tirx.floordiv(i, across))

            def of_right(i, j):
                return right.at(columns, DepthStep(q * index(steps) + j))(tirx.floormod(i, across))

            if self.dots is not None and (added := self.dots(acc, of_left, of_right)) is not None:
                return added
            return acc.set(lambda i, j, value: value + self.times(of_left(i, j), of_right(i, j)))

        def total(i, j) -> tirx.Stmt:
            def fold(half: int) -> tirx.Stmt:
                return self.scope.loop(
                    half, lambda v: store(lanes, lanes[i, j, v] + lanes[i, j, v + half], i, j, v), "v", VECTOR
                )

            halves = (steps >> n for n in range(1, steps.bit_length()))
            return block(*map(fold, halves), store(done, self.epilogue.start + lanes[i, j, 0], first + i, j))

        start = acc.set(lambda i, j, _: tirx.const(0, self.dtype))
        spill = acc.each(lambda i, j, value: store(lanes, value, tirx.floordiv(i, across), tirx.floormod(i, across), j))
        sums = self.scope.loop(
            height, lambda i: self.scope.loop(width, lambda j: total(i, j), "j", UNROLL), "i", UNROLL
        )
        multiply = self.scope.loop(self.depth // steps, add, "k")
        return allocate([lanes], block(acc.allocate(start, multiply, spill), sums))
