# SPDX-License-Identifier: Apache-2.0
"""The tile of one operand of a matmul on its way: global memory -> registers of its threads -> shared memory.

    fetch(round):  staged[c, v] = operand(lane, depth)      while the tile before is multiplied
    put():         shared[depth, lane] = staged[c, v]       between two barriers

A lane is a row of the left or a column of the right operand. Lanes past the end read the last one again: their results
are not stored. Terms past the end are zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from tvm import DataType, tirx

from ....ir.texels import is_texture
from ....ir.walk import loads
from ....target import Limits
from ...core.expressions import contiguous_run
from ...core.nest import SERIAL, UNROLL, Scope, fresh, index, store
from ...core.nest import VECTOR as VECTORIZED
from ..launch import registers, shared, when
from ..occupancy import VECTOR
from ..vectors import computed_types, places_of, vector_run


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

    def _along(self, along_depth: bool) -> tuple:
        """(value at a fused index in that direction, its extent, extents of the other indices)."""
        b, other = fresh("b"), fresh("other")
        mine, others = (self.depth, self.lanes) if along_depth else (self.lanes, self.depth)
        at = (lambda k: self.value(b, other, k)) if along_depth else (lambda lane: self.value(b, lane, other))
        return at, mine, {b: self.batch, other: others}

    def most(self, limits: Limits) -> int:
        """Elements that one load brings at most: a texel has four, a vector in a buffer 16 bytes."""
        value = self.value(index(0), index(0), index(0))
        read = [load.source for load in loads(value)]
        if any(map(is_texture, read)):
            return VECTOR
        return max(VECTOR, limits.vector_of((str(buffer.dtype) for buffer in read), computed_types(value)))

    def run(self, along_depth: bool, most: int = VECTOR) -> int:
        """Elements that one vector load brings along the depth, or along the lanes; `most` at most."""
        value, extent, outer = self._along(along_depth)
        return vector_run(lambda at: places_of(value(at)), extent, outer, most)

    def closeness(self, along_depth: bool) -> tuple[int, int]:
        """How well neighbouring threads read in that direction: vectors first, then elements next to each other."""
        value, extent, outer = self._along(along_depth)

        def place(number: int):
            def access(at):
                load = loads(value(at))[number]
                return load.source, load.indices

            return access

        count = len(loads(value(index(0))))
        runs = [contiguous_run(place(number), extent, outer, VECTOR) for number in range(count)]
        return self.run(along_depth), max(runs, default=1)


_SECTOR = 32  # bytes that memory delivers at least


class SharedTile:
    """`size` lanes and `depth` terms of an operand in shared memory, brought there by `threads` threads.

    A load brings `most` elements at most; rows of lanes lie `pad` elements apart where they are written one by one.
    """

    def __init__(
        self, name: str, operand: Operand, size: int, depth: int, threads: int, dtype: str, most: int, pad: int = VECTOR
    ):
        self.operand, self.size, self.depth, self.threads, self._most = operand, size, depth, threads, most
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

    def _place(self, number):
        """(lane, depth) of the first element of vector `number`, each in elements or, along it, in vectors."""
        if not self._along_depth:
            across = index(self.size // self.width)
            return tirx.floormod(number, across), tirx.floordiv(number, across)
        # A sector of each lane before the next lane: memory is read in whole sectors, and the threads of a warp,
        # which store to different rows, find each a bank of its own.
        delivered = _SECTOR // DataType(str(self.shared.dtype)).itemsize
        sector = max(1, gcd(delivered, self.depth) // self.width)
        rest = tirx.floordiv(number, index(sector))
        within = tirx.floormod(number, index(sector))
        return (
            tirx.floormod(rest, index(self.size)),
            tirx.floordiv(rest, index(self.size)) * index(sector) + within,
        )

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
            lane, k = self._place(number)
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
            lane, k = self._place(number)

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
