# SPDX-License-Identifier: Apache-2.0
"""The tile of one operand of a matmul on its way: global memory -> registers of its threads -> shared memory.

    fetch(round):  staged[c, v] = operand(lane, depth)      while the tile before is multiplied
    put():         shared[depth, lane] = staged[c, v]       between two barriers

A lane is a row of the left or a column of the right operand. Lanes past the end read the last one again: their results
are not stored. Terms past the end are zeros.

Neighbouring threads fetch what memory delivers at once: of a buffer a run of elements, of an image a block of texels,
which with halves has twice as many columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from tvm import DataType, tirx

from ....ir.texels import is_texture
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ....target import Limits
from ...core.expressions import contiguous_run
from ...core.nest import SERIAL, UNROLL, Scope, fresh, index, store
from ...core.nest import VECTOR as VECTORIZED
from ..launch import registers, shared, when
from ..occupancy import SECTOR, VECTOR, WARP
from ..vectors import computed_types, guarded, places_of, vector_run


@dataclass(frozen=True, eq=False)
class Operand:
    """One operand as a function of fused indices.

    Attributes
    ----------
    value : callable
        ``(batch, lane, depth) -> expression``.
    batch, lanes, depth : int
        Extents.
    """

    value: Callable
    batch: int
    lanes: int
    depth: int

    @cached_property
    def sources(self) -> list:
        """Tensors that it is read from."""
        return [load.source for load in loads(self.value(index(0), index(0), index(0)))]

    @cached_property
    def texels(self) -> int:
        """Columns of an image that it is read from, as many as memory delivers at once; 1 where it is no image."""
        sizes = [TEXEL * DataType(str(image.dtype)).itemsize for image in self.sources if is_texture(image)]
        return max(1, SECTOR // min(sizes)) if sizes else 1

    def along(self, along_depth: bool) -> tuple:
        """(value at a fused index in that direction, its extent, extents of the other indices)."""
        b, other = fresh("b"), fresh("other")
        mine, others = (self.depth, self.lanes) if along_depth else (self.lanes, self.depth)
        at = (lambda k: self.value(b, other, k)) if along_depth else (lambda lane: self.value(b, lane, other))
        return at, mine, {b: self.batch, other: others}

    def most(self, limits: Limits) -> int:
        """Elements that one load brings at most: a texel has four, a vector in a buffer 16 bytes."""
        if any(map(is_texture, self.sources)):
            return VECTOR
        computed = computed_types(self.value(index(0), index(0), index(0)))
        return max(VECTOR, limits.vector_of((str(buffer.dtype) for buffer in self.sources), computed))

    def run(self, along_depth: bool, most: int = VECTOR) -> int:
        """Elements that one vector load brings along the depth, or along the lanes; `most` at most.

        Padding is no matter where all of a vector lies in it, or none.
        """
        value, extent, outer = self.along(along_depth)

        def condition(at):
            return guarded(value(at))[0]

        return vector_run(lambda at: places_of(guarded(value(at))[1]), extent, outer, most, condition)

    def closeness(self, along_depth: bool) -> tuple[int, int]:
        """How well neighbouring threads read in that direction: vectors first, then elements next to each other."""
        value, extent, outer = self.along(along_depth)

        def place(number: int):
            def access(at):
                load = loads(value(at))[number]
                return load.source, load.indices

            return access

        count = len(loads(value(index(0))))
        runs = [contiguous_run(place(number), extent, outer, VECTOR) for number in range(count)]
        return self.run(along_depth), max(runs, default=1)


@dataclass(frozen=True)
class Deal:
    """Lanes that are dealt to `threads` threads one by one.

    What each of them has of a round of `run` lie next to each other in shared memory: vectors for a thread, and
    neighbours for neighbouring threads, who then write results that are neighbours.
    """

    threads: int
    run: int

    def place(self, lane, simplify: Callable):
        """Where a lane lies."""
        threads, run = index(self.threads), index(self.run)
        turn, rest = tirx.floordiv(lane, threads * run), tirx.floormod(lane, threads * run)
        return simplify((turn * threads + tirx.floormod(rest, threads)) * run + tirx.floordiv(rest, threads))

    def fetched(self, number, together: int, simplify: Callable):
        """The lane that is fetched as number so and so.

        Lanes that are fetched one after the other lie near each other, so that they are put to different banks, and
        `together` of them are neighbours.
        """
        near = gcd(self.threads, together)
        lane, rest = tirx.floormod(number, index(near)), tirx.floordiv(number, index(near))
        step, rest = tirx.floormod(rest, index(self.run)), tirx.floordiv(rest, index(self.run))
        block, turn = (f(rest, index(self.threads // near)) for f in (tirx.floormod, tirx.floordiv))
        return simplify((turn * index(self.run) + step) * index(self.threads) + block * index(near) + lane)


class SharedTile:
    """`size` lanes and `depth` terms of an operand in shared memory, brought there by `threads` threads.

    A load brings `most` elements at most; rows of lanes lie `pad` elements apart where they are written one by one.
    Lanes lie in their order, or as `deal` says where it is no trouble: where they are written one by one.
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
    ):
        self.operand, self.size, self.depth, self.threads, self._most = operand, size, depth, threads, most
        self.deal = deal if self._along_depth else None
        # Along the depth, neighbours store to different rows: padding keeps those from falling into one bank.
        self._pitch = size + (pad if self._along_depth else 0)
        # One dimension: TVM would cut padding off a second one.
        self.shared = shared(depth * self._pitch, dtype, f"{name}_shared")
        self.staged = registers(self._rounds * self.width, dtype, f"{name}_staged")

    def at(self, lane, k):
        """Position of an element in shared memory."""
        return k * index(self._pitch) + lane

    @cached_property
    def _along_depth(self) -> bool:
        return self.operand.closeness(True) >= self.operand.closeness(False)

    @cached_property
    def width(self) -> int:
        """Elements per load."""
        run = self.operand.run(self._along_depth, self._most)
        return run if (self.depth if self._along_depth else self.size) % run == 0 else min(run, VECTOR)

    @property
    def _vectors(self) -> int:
        return self.size * self.depth // self.width

    @property
    def _rounds(self) -> int:
        return -(-self._vectors // self.threads)

    def _place(self, number, simplify: Callable):
        """(lane, depth) of the first element of vector `number`, each in elements or, along it, in vectors."""
        if not self._along_depth:
            return self._place_across(number)
        # A sector of each lane before the next lane: memory is read in whole sectors, and the threads of a warp,
        # which store to different rows, find each a bank of its own.
        delivered = SECTOR // DataType(str(self.shared.dtype)).itemsize
        sector = max(1, gcd(delivered, self.depth) // self.width)
        rest = tirx.floordiv(number, index(sector))
        within = tirx.floormod(number, index(sector))
        lane = tirx.floormod(rest, index(self.size))
        lane = lane if self.deal is None else self.deal.fetched(lane, self.operand.texels, simplify)
        return lane, tirx.floordiv(rest, index(self.size)) * index(sector) + within

    def _place_across(self, number):
        """The same where vectors lie along the lanes: of an image, blocks of terms before the next lanes."""
        across, terms = self.size // self.width, gcd(self.operand.texels, self.depth)
        lanes = gcd(across, WARP // terms) if terms > 1 else across
        inner, rest = (f(number, index(lanes * terms)) for f in (tirx.floormod, tirx.floordiv))
        lane, k = (f(inner, index(lanes)) for f in (tirx.floormod, tirx.floordiv))
        outer, turn = (f(rest, index(across // lanes)) for f in (tirx.floormod, tirx.floordiv))
        return outer * index(lanes) + lane, turn * index(terms) + k

    def _each(self, scope: Scope, thread, body: Callable) -> tirx.Stmt:
        """``body(c, number)`` for the vectors that a thread brings."""

        def vector(c):
            number = scope.analyzer.simplify(c * index(self.threads) + thread)
            inside = body(c, number)
            return inside if self._vectors % self.threads == 0 else when(number < index(self._vectors), inside)

        return scope.loop(self._rounds, vector, "c", UNROLL)

    def _along(self, scope: Scope, body: Callable) -> tirx.Stmt:
        kind = VECTORIZED if self.width > 1 else SERIAL
        return scope.loop(self.width, lambda v: scope.simplify(body(v)), "v", kind)

    def fetch(self, scope: Scope, thread, batch, tile, step, whole: bool) -> tirx.Stmt:
        """Load this thread's part of tile number `tile`, terms ``[step * depth, ...)``; `whole` if they all exist."""
        operand, width = self.operand, self.width

        def vector(c, number):
            lane, k = self._place(number, scope.analyzer.simplify)
            lane_width, k_width = (1, width) if self._along_depth else (width, 1)
            lane = _at_most(lane + tile * index(self.size // lane_width), self.size, operand.lanes, lane_width)
            k = scope.analyzer.simplify(k + step * index(self.depth // k_width))

            def element(v):
                where = (lane, k * index(width) + v) if self._along_depth else (lane * index(width) + v, k)
                return store(self.staged, operand.value(batch, *where), c * index(width) + v)

            load = self._along(scope, element)
            if whole:
                return load
            zero = tirx.const(0, self.staged.ty.dtype)
            zeros = self._along(scope, lambda v: store(self.staged, zero, c * index(width) + v))
            return tirx.IfThenElse(k < index(operand.depth // k_width), load, zeros)

        return self._each(scope, thread, vector)

    def put(self, scope: Scope, thread) -> tirx.Stmt:
        """Store what was fetched."""
        width = self.width

        def vector(c, number):
            lane, k = self._place(number, scope.analyzer.simplify)
            lane = lane if self.deal is None else self.deal.place(lane, scope.analyzer.simplify)

            def element(v):
                where = (lane, k * index(width) + v) if self._along_depth else (lane * index(width) + v, k)
                return store(self.shared, self.staged[c * index(width) + v], self.at(*where))

            if self._along_depth:
                return scope.loop(width, lambda v: scope.simplify(element(v)), "v", UNROLL)
            return self._along(scope, element)

        return self._each(scope, thread, vector)


def _at_most(lane, size: int, lanes: int, width: int):
    """`lane` (in vectors of `width`), or the last one there is."""
    return lane if lanes % size == 0 else tirx.min(lane, index(lanes // width - 1))
