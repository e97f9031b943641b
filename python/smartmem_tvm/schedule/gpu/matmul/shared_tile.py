# SPDX-License-Identifier: Apache-2.0
"""The path of one operand's tile of a GEMM: global memory -> registers of its threads -> shared memory.

    fetch(round):  staged[c, v] = operand(lane, depth)      prefetch, while the tile before is multiplied
    put():         shared[depth, lane] = staged[c, v]       between two barriers

A lane is a row of the left or a column of the right operand. Lanes past the end read the last one again: their results
are not stored. Terms past the end are zeros.

Neighbouring threads load one sector of memory: a run of elements of a buffer, or a block of texels of an image, which
has twice as many columns in float16.
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
from ..machine import SECTOR, VECTOR, WARP
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
        """Tensors that the operand reads."""
        return [load.source for load in loads(self.value(index(0), index(0), index(0)))]

    @cached_property
    def texels(self) -> int:
        """Columns of an image that one sector of memory has; 1 if the operand reads no image."""
        sizes = [TEXEL * DataType(str(image.dtype)).itemsize for image in self.sources if is_texture(image)]
        return max(1, SECTOR // min(sizes)) if sizes else 1

    def along(self, along_depth: bool) -> tuple:
        """Return (value at a fused index in that direction, its extent, extents of the other indices)."""
        b, other = fresh("b"), fresh("other")
        mine, others = (self.depth, self.lanes) if along_depth else (self.lanes, self.depth)
        at = (lambda k: self.value(b, other, k)) if along_depth else (lambda lane: self.value(b, lane, other))
        return at, mine, {b: self.batch, other: others}

    def most(self, limits: Limits) -> int:
        """Return the most elements of one load: a texel has four, a vector in a buffer 16 bytes."""
        if any(map(is_texture, self.sources)):
            return VECTOR
        computed = computed_types(self.value(index(0), index(0), index(0)))
        return max(VECTOR, limits.vector_of((str(buffer.dtype) for buffer in self.sources), computed))

    def run(self, along_depth: bool, most: int = VECTOR) -> int:
        """Return the elements of a vector load along the depth, or along the lanes; `most` at most.

        A vector may lie in the padding as a whole, but not in part.
        """
        value, extent, outer = self.along(along_depth)

        def condition(at):
            return guarded(value(at))[0]

        return vector_run(lambda at: places_of(guarded(value(at))[1]), extent, outer, most, condition)

    def closeness(self, along_depth: bool) -> tuple[int, int]:
        """Rank the coalescing of loads in that direction: (elements of a vector load, contiguous elements)."""
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
    """Lanes that are dealt to `threads` threads one by one (round robin).

    The `run` lanes that a thread gets in a round are contiguous in shared memory, so that it reads them as a vector.
    Neighbouring threads have neighbouring lanes, so that they write neighbouring results.
    """

    threads: int
    run: int

    def place(self, lane, simplify: Callable):
        """Return the place of a lane in shared memory."""
        threads, run = index(self.threads), index(self.run)
        turn, rest = tirx.floordiv(lane, threads * run), tirx.floormod(lane, threads * run)
        return simplify((turn * threads + tirx.floormod(rest, threads)) * run + tirx.floordiv(rest, threads))

    def fetched(self, number, together: int, simplify: Callable):
        """Return the lane that is loaded as the `number`-th.

        Lanes that are loaded one after the other are near each other in shared memory, so that they are stored to
        different banks, and `together` of them are neighbours in global memory.
        """
        near = gcd(self.threads, together)
        lane, rest = tirx.floormod(number, index(near)), tirx.floordiv(number, index(near))
        step, rest = tirx.floormod(rest, index(self.run)), tirx.floordiv(rest, index(self.run))
        block, turn = (f(rest, index(self.threads // near)) for f in (tirx.floormod, tirx.floordiv))
        return simplify((turn * index(self.run) + step) * index(self.threads) + block * index(near) + lane)


class SharedTile:
    """`size` lanes and `depth` terms of an operand in shared memory, copied there by `threads` threads.

    A load has `most` elements at most. If elements are written one by one, `pad` elements separate the rows of lanes,
    and the lanes are in the order of `deal` if there is one.
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
        # If threads load along the depth, neighbouring threads store to different rows: padding avoids bank conflicts.
        self._pitch = size + (pad if self._along_depth else 0)
        # One dimension: TVM would cut padding off a second one.
        self.shared = shared(depth * self._pitch, dtype, f"{name}_shared")
        self.staged = registers(self._rounds * self.width, dtype, f"{name}_staged")

    def at(self, lane, k):
        """Return the position of an element in shared memory."""
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
        """Return (lane, depth) of the first element of vector `number`, in elements; along the vector, in vectors."""
        if not self._along_depth:
            return self._place_across(number)
        # A sector of each lane before the next lane: memory is read in whole sectors, and the threads of a warp store
        # to different rows, each in a bank of its own.
        delivered = SECTOR // DataType(str(self.shared.dtype)).itemsize
        sector = max(1, gcd(delivered, self.depth) // self.width)
        rest = tirx.floordiv(number, index(sector))
        within = tirx.floormod(number, index(sector))
        lane = tirx.floormod(rest, index(self.size))
        lane = lane if self.deal is None else self.deal.fetched(lane, self.operand.texels, simplify)
        return lane, tirx.floordiv(rest, index(self.size)) * index(sector) + within

    def _place_across(self, number):
        """Return the same for vectors along the lanes: for an image, blocks of terms before the next lanes."""
        across, terms = self.size // self.width, gcd(self.operand.texels, self.depth)
        lanes = gcd(across, WARP // terms) if terms > 1 else across
        inner, rest = (f(number, index(lanes * terms)) for f in (tirx.floormod, tirx.floordiv))
        lane, k = (f(inner, index(lanes)) for f in (tirx.floormod, tirx.floordiv))
        outer, turn = (f(rest, index(across // lanes)) for f in (tirx.floormod, tirx.floordiv))
        return outer * index(lanes) + lane, turn * index(terms) + k

    def _each(self, scope: Scope, thread, body: Callable) -> tirx.Stmt:
        """Return ``body(c, number)`` for the vectors that a thread copies."""

        def vector(c):
            number = scope.analyzer.simplify(c * index(self.threads) + thread)
            inside = body(c, number)
            return inside if self._vectors % self.threads == 0 else when(number < index(self._vectors), inside)

        return scope.loop(self._rounds, vector, "c", UNROLL)

    def _along(self, scope: Scope, body: Callable) -> tirx.Stmt:
        kind = VECTORIZED if self.width > 1 else SERIAL
        return scope.loop(self.width, lambda v: scope.simplify(body(v)), "v", kind)

    def fetch(self, scope: Scope, thread, batch, tile, step, whole: bool) -> tirx.Stmt:
        """Prefetch this thread's part of tile number `tile`, terms ``[step * depth, ...)``; `whole` if all exist."""
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
        """Store the prefetched elements to shared memory."""
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
    """Return `lane` (in vectors of `width`), clamped to the last one."""
    return lane if lanes % size == 0 else tirx.min(lane, index(lanes // width - 1))
