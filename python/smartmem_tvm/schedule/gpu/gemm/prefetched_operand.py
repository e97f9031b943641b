# SPDX-License-Identifier: Apache-2.0
"""The path of one operand's tile of a GEMM: global memory -> registers of its threads -> shared memory.

    fetch(round):  staged[c, v] = operand(outer, depth)      prefetch, while the tile before is multiplied
    put():         shared[depth, outer] = staged[c, v]       between two barriers

Rows of the left operand (columns of the right one) past the end read the last one again: their results are not stored.
Terms past the end are zeros.

Neighbouring threads load one sector of memory: a run of elements of a buffer, or a block of texels of an image, which
has twice as many columns in float16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from tvm import DataType, ir, tirx

from ...core.nest import SERIAL, UNROLL, Scope, fresh, index, store
from ...core.nest import VECTOR as VECTORIZED
from ..launch import registers, shared
from ..machine import SECTOR, VECTOR, WARP
from .chosen_vectors import chosen_run, fill
from .copied_tile import CopiedTile
from .operand import Operand


@dataclass(frozen=True)
class Deal:
    """Rows or columns that are dealt to `threads` threads one by one (round robin).

    The `run` of them that a thread gets in a round are contiguous in shared memory, so that it reads them as a vector.
    Neighbouring threads have neighbours, so that they write neighbouring results.
    """

    threads: int
    run: int

    def place(self, outer, simplify: Callable):
        """Return the place of an outer index in shared memory."""
        threads, run = index(self.threads), index(self.run)
        turn, rest = tirx.floordiv(outer, threads * run), tirx.floormod(outer, threads * run)
        return simplify((turn * threads + tirx.floormod(rest, threads)) * run + tirx.floordiv(rest, threads))

    def fetched(self, number, together: int, simplify: Callable):
        """Return the outer index that is loaded as the `number`-th.

        Those that are loaded one after the other are near each other in shared memory, so that they are stored to
        different banks, and `together` of them are neighbours in global memory.
        """
        near = gcd(self.threads, together)
        within, rest = tirx.floormod(number, index(near)), tirx.floordiv(number, index(near))
        step, rest = tirx.floormod(rest, index(self.run)), tirx.floordiv(rest, index(self.run))
        block, turn = (f(rest, index(self.threads // near)) for f in (tirx.floormod, tirx.floordiv))
        return simplify((turn * index(self.run) + step) * index(self.threads) + block * index(near) + within)


class PrefetchedOperand(CopiedTile):
    """`size` rows or columns and `depth` terms of an operand in shared memory, copied there by `threads` threads.

    A load has `most` elements at most. If elements are written one by one, `pad` elements separate the
    terms, and rows or columns are in the order of `deal` if there is one. With `choices`, elements that come from one
    of several tensors are loaded as vectors, too, and the tensor is chosen once for each (`chosen_vectors`).
    """

    def __init__(
        self,
        name: str,
        operand: Operand,
        size: int,
        depth: int,
        threads: int,
        dtype: str,
        most: int,
        pad: int = VECTOR,
        deal: Deal | None = None,
        choices: bool = False,
    ):
        self.operand, self.size, self.depth, self.threads, self._most = operand, size, depth, threads, most
        self._choices = choices
        self.deal = deal if self._along_depth else None
        # If threads load along the depth, neighbouring threads store to different rows: padding avoids bank conflicts.
        self._pitch = size + (pad if self._along_depth else 0)
        # One dimension: TVM would cut padding off a second one.
        self.shared = shared(depth * self._pitch, dtype, f"{name}_shared")
        self.staged = registers(self._rounds * self.width, dtype, f"{name}_staged")

    def at(self, outer, k):
        """Return the position of an element in shared memory."""
        return k * index(self._pitch) + outer

    @cached_property
    def _along_depth(self) -> bool:
        return self.operand.closeness(True) >= self.operand.closeness(False)

    @cached_property
    def width(self) -> int:
        """Elements per load."""
        run = self.operand.run(self._along_depth, self._most)
        run = self._chosen if run == 1 else run
        return run if (self.depth if self._along_depth else self.size) % run == 0 else min(run, VECTOR)

    @cached_property
    def _chosen(self) -> int:
        """Elements per load in which no choice between tensors changes; 1 if there are none."""
        return chosen_run(self.operand, self._along_depth, self._most) if self._choices else 1

    def _place(self, number, simplify: Callable):
        """Return (outer index, term) of the first element of vector `number`; along the vector, in vectors."""
        if not self._along_depth:
            return self._place_across(number)
        # A sector of each row before the next row: memory is read in whole sectors, and the threads of a warp store
        # to different rows, each in a bank of its own.
        delivered = SECTOR // DataType(str(self.shared.dtype)).itemsize
        sector = max(1, gcd(delivered, self.depth) // self.width)
        rest = tirx.floordiv(number, index(sector))
        within = tirx.floormod(number, index(sector))
        outer = tirx.floormod(rest, index(self.size))
        outer = outer if self.deal is None else self.deal.fetched(outer, self.operand.texels, simplify)
        return outer, tirx.floordiv(rest, index(self.size)) * index(sector) + within

    def _place_across(self, number):
        """Return the same for vectors along the outer index: for an image, blocks of terms before the next vectors."""
        across, terms = self.size // self.width, gcd(self.operand.texels, self.depth)
        vectors = gcd(across, WARP // terms) if terms > 1 else across
        inner, rest = (f(number, index(vectors * terms)) for f in (tirx.floormod, tirx.floordiv))
        vector, k = (f(inner, index(vectors)) for f in (tirx.floormod, tirx.floordiv))
        far, turn = (f(rest, index(across // vectors)) for f in (tirx.floormod, tirx.floordiv))
        return far * index(vectors) + vector, turn * index(terms) + k

    def _along(self, scope: Scope, body: Callable) -> tirx.Stmt:
        kind = VECTORIZED if self.width > 1 else SERIAL
        return scope.loop(self.width, lambda v: scope.simplify(body(v)), "v", kind)

    def fetch(self, scope: Scope, thread, batch, tile, step, whole: bool) -> tirx.Stmt:
        """Prefetch this thread's part of tile number `tile`, terms ``[step * depth, ...)``; `whole` if all exist."""
        operand, width = self.operand, self.width

        def vector(c, number):
            outer, k = self._place(number, scope.analyzer.simplify)
            outer_width, k_width = (1, width) if self._along_depth else (width, 1)
            outer = _at_most(outer + tile * index(self.size // outer_width), self.size, operand.outer, outer_width)
            k = scope.analyzer.simplify(k + step * index(self.depth // k_width))

            def value(v):
                where = (outer, k * index(width) + v) if self._along_depth else (outer * index(width) + v, k)
                return operand.value(batch, *where)

            load = self._load(scope, value, c * index(width))
            if whole:
                return load
            zero = tirx.const(0, self.staged.ty.dtype)
            zeros = self._along(scope, lambda v: store(self.staged, zero, c * index(width) + v))
            return tirx.IfThenElse(k < index(operand.depth // k_width), load, zeros)

        return self._each(scope, thread, vector)

    def _load(self, scope: Scope, value: Callable, first) -> tirx.Stmt:
        """Store the elements of a vector to registers."""
        if 1 < self.width <= self._chosen:
            v = fresh("v")
            scope.analyzer.bind(v, ir.Range(index(0), index(self.width)))
            return fill(scope, self.staged, first, v, value(v), self.width)
        return self._along(scope, lambda v: store(self.staged, value(v), first + v))

    def put(self, scope: Scope, thread) -> tirx.Stmt:
        """Store the prefetched elements to shared memory."""
        width = self.width

        def vector(c, number):
            outer, k = self._place(number, scope.analyzer.simplify)
            outer = outer if self.deal is None else self.deal.place(outer, scope.analyzer.simplify)

            def element(v):
                where = (outer, k * index(width) + v) if self._along_depth else (outer * index(width) + v, k)
                return store(self.shared, self.staged[c * index(width) + v], self.at(*where))

            if self._along_depth:
                return scope.loop(width, lambda v: scope.simplify(element(v)), "v", UNROLL)
            return self._along(scope, element)

        return self._each(scope, thread, vector)


def _at_most(outer, size: int, extent: int, width: int):
    """Return `outer` (in vectors of `width`), clamped to the last one."""
    return outer if extent % size == 0 else tirx.min(outer, index(extent // width - 1))
