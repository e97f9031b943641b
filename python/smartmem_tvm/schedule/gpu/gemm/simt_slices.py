# SPDX-License-Identifier: Apache-2.0
"""Register tiles whose slices share the epilogue: each slice adds the sums of all slices for some of the results.

    each thread of each slice:
      shared[slice, i] = sums[i]
      for each of its results i, every `slices`-th vector:
        out[f(i)] = finish(sum over slices of shared[slice, i])

Products of few thread blocks and long sums (windows) have up to eight slices: if the first slice finished alone, as in
`Simt`, seven eighths of the threads would wait for it.
"""

from __future__ import annotations

from tvm import tirx

from ...core.nest import VECTOR, allocate, block, index, store
from ..guards import guard
from ..launch import registers, shared
from .simt import Simt
from .skeleton import GpuEpilogue, Place, Thread


class SimtSlices(Simt):
    """The micro-kernel of register tiles, with an epilogue shared by the slices.

    Parameters
    ----------
    run : int
        Neighbouring columns that one store writes: 4 for a texture, else 1.
    """

    def __init__(self, *args, run: int, **kwargs):
        super().__init__(*args, **kwargs)
        self.run = run

    def _slice_sums(self):
        return shared(self.tile.slices * int(self.sums.shape[0]) * self.tile.slice_threads, self.sums.ty.dtype, "sums")

    def finish(self, place: Place, thread: Thread, epilogue: GpuEpilogue) -> tirx.Stmt:
        """Store the results that exist: all of a thread, or its slice's share of them."""
        many, run = int(self.sums.shape[0]), self.run

        def store_at(values, first: int, n) -> tirx.Stmt:
            return self._store(values, first, place, thread, n, epilogue)

        if self.tile.slices == 1:
            return block(self.held.settle(), *(store_at(self.sums, n, index(n)) for n in range(0, many, run)))
        return self._merge(thread, store_at)

    def _merge(self, thread: Thread, store_at) -> tirx.Stmt:
        tile, many, run = self.tile, int(self.sums.shape[0]), self.run

        def slot(part, e):
            return (part * index(many) + e) * index(tile.slice_threads) + thread.within

        spill = block(*(store(self.slice_sums, self.sums[e], slot(thread.slice, index(e))) for e in range(many)))

        def add(q):
            first = (q * index(tile.slices) + thread.slice) * index(run)
            total = registers(run, self.sums.ty.dtype, "total")
            added = []
            for v in range(run):
                values = [self.slice_sums[slot(index(each), first + index(v))] for each in range(tile.slices)]
                added.append(store(total, sum(values[1:], values[0]), v))
            return allocate([total], block(*added, store_at(total, 0, first)))

        return block(spill, self.scope.loop(many // (tile.slices * run), add, "q"))

    def _store(self, values, first: int, place: Place, thread: Thread, n, epilogue: GpuEpilogue) -> tirx.Stmt:
        """Finish and store `run` results from number `n` of the thread on; ``values[first]`` is the first of them."""
        tile, product, columns = self.tile, epilogue.product, index(self.tile.thread_columns)
        i, j = (self.scope.simplify(f(n, columns)) for f in (tirx.floordiv, tirx.floormod))
        row = place.row * index(tile.rows) + self.left_fragment.place(thread.row, i)
        column = place.column * index(tile.columns) + self.right_fragment.place(thread.column, j)
        conditions = [row < index(product.rows), column < index(product.columns)]
        conditions = [self.scope.analyzer.simplify(each) for each in conditions]
        # If a row has one vector, its column is a constant 0: no condition would tell the check of texels so.
        column = index(0) if product.columns == self.run else column

        def one(v):
            return self.scope.simplify(epilogue.store(values[index(first) + v], place, row, column + v))

        return guard(conditions, self.scope.loop(self.run, one, "v", VECTOR))
