# SPDX-License-Identifier: Apache-2.0
"""A tile of an operand that threads gather into shared memory: padding, stride and windows (im2col on the fly).

    shared[slice, depth, outer] = operand(outer, depth)      each element computed where it goes; zero outside

The threads of a slice gather its part of the depth. From a texture they load whole texels.
"""

from __future__ import annotations

from tvm import tirx

from ....planner.texture_form import TEXEL
from ...core.nest import VECTOR, Scope, allocate, block, index, store
from ..guards import guard, guarded_value
from ..launch import registers, shared
from .operand import Operand
from .prefetched_operand import Deal
from .skeleton import Thread

_UNROLLED = 16  # most steps of a gather that are unrolled: assumed, never measured
# The same on phones. Chosen: 18 terms for 128 rows of 128 threads, whose places are constants beside the first one's.
_UNROLLED_PHONE = 24
# The same where a thread's places in a window are constants, or where it keeps its term. Chosen: 36 terms of 128 rows
# of 128 threads took twice the time in a loop; 25 terms of a 7 x 7 window spilled without one (2026-11-29).
_UNROLLED_KNOWN = 48
_MORE_STEPS = 1.25  # times the steps of a gather for places without divisions. Chosen: each was 22 integer instructions


class GatheredOperand:
    """`size` rows or columns and the terms of all slices of an operand in shared memory.

    Parameters
    ----------
    tile : ProductTile
        Its slices, its `depth` of each of them, its padding between terms in elements.
    texel : (int, int)
        Rows (or columns) and terms of a texel that one load gathers; (1, 1) if it is no texture.
    along_depth : bool
        Whether only terms are innermost in memory: neighbouring threads then gather neighbouring terms.
    window : int
        Terms of a window: a thread that gathers whole windows of one row (column) gathers one after the other, so that
        its position in the window is known when compiled; where terms are innermost in memory, a thread keeps its term.
        0 if neighbouring threads take neighbouring elements in any case.
    deal : Deal, optional
        Order of the rows (columns) in shared memory, where a thread reads vectors of them and its neighbours have
        neighbouring ones.
    """

    def __init__(
        self,
        scope: Scope,
        name: str,
        operand: Operand,
        size: int,
        tile,
        dtype: str,
        texel: tuple[int, int],
        along_depth: bool,
        window: int = 0,
        deal: Deal | None = None,
    ):
        self.scope, self.operand, self.size, self.tile, self.dtype = scope, operand, size, tile, dtype
        self.texel, self.deal = texel, deal
        # A texture is read by texels: neighbouring threads read the texels of neighbouring pixels.
        self.along_depth = along_depth and texel == (1, 1)
        self.window = window // texel[1] if window % texel[1] == 0 else 0
        # One dimension: TVM would remove the padding of a second one.
        self.shared = shared(tile.slices * tile.depth * (size + tile.pad), dtype, name)

    def at(self, outer, k):
        """Return the place of an element, of a term of all slices together."""
        return k * index(self.size + self.tile.pad) + outer

    def _dealt(self, outer):
        return outer if self.deal is None else self.deal.place(outer, self.scope.analyzer.simplify)

    def gather(self, batch, number, step, thread: Thread) -> tirx.Stmt:
        """Fill this thread's share of tile number `number`, terms ``[step * depth, ...)`` of its slice."""
        values, terms = self.texel
        depth, size, threads = self.tile.depth // terms, self.size // values, self.tile.slice_threads
        total, simplify = depth * size, self.scope.analyzer.simplify
        count, operand = -(-total // threads), self.operand
        begin, first = number * index(self.size), step * index(self.tile.depth)
        in_windows = self.window and total % threads == threads % size == 0 == count % self.window
        across = threads // depth  # rows (columns) at once of threads that keep their term
        keeps = self.window and self.along_depth and across and -(-size // across) <= _MORE_STEPS * count
        if keeps:
            count = -(-size // across)

        def place_of(i):
            e = i * index(threads) + thread.within
            if keeps:
                return _div(thread.within, depth) + i * index(across), _mod(thread.within, depth)
            if self.along_depth:
                return _div(e, depth), _mod(e, depth)
            if in_windows:
                return _mod(thread.within, size), _div(thread.within, size) * index(count) + i
            return _mod(e, size), _div(e, size)

        def limits_of(i, n) -> list:
            if keeps:
                return [] if size % across == 0 else [simplify(n < index(size))]
            return [] if total % threads == 0 else [simplify(i * index(threads) + thread.within < index(total))]

        def one(i):
            n, k = place_of(i)
            fits = limits_of(i, n)
            n, k = n * index(values), k * index(terms)
            conditions = [begin + n < index(operand.outer), first + k < index(operand.depth)]
            conditions = [simplify(each) for each in conditions]

            def value(v):
                at = (begin + n + v, first + k) if values > 1 else (begin + n, first + k + v)
                element = self.scope.simplify(operand.value(batch, *at))
                return guarded_value(conditions, element, tirx.const(0, self.dtype))

            def place(v):
                term = thread.slice * index(self.tile.depth) + k
                return self.at(self._dealt(n + v), term) if values > 1 else self.at(self._dealt(n), term + v)

            return guard(fits, self._fetch(value, place))

        most = _UNROLLED_KNOWN if in_windows or keeps else _UNROLLED_PHONE if self.window else _UNROLLED
        if count > most:
            return self.scope.loop(count, one, "load")
        every = block(*(one(index(i)) for i in range(count)))
        return guard([thread.within < index(across * depth)] if keeps and threads % depth else [], every)

    def _fetch(self, value, place) -> tirx.Stmt:
        """Store ``value(v)`` at ``place(v)``: one value, or the four of a texel, which is loaded once."""
        if self.texel == (1, 1):
            return self.scope.simplify(store(self.shared, value(index(0)), place(index(0))))
        numbers = registers(TEXEL, self.dtype, "texel")
        read = self.scope.loop(TEXEL, lambda v: store(numbers, value(v), v), "v", VECTOR)
        puts = [self.scope.simplify(store(self.shared, numbers[v], place(index(v)))) for v in range(TEXEL)]
        return allocate([numbers], block(read, *puts))


def _div(value, by: int):
    return tirx.floordiv(value, index(by))


def _mod(value, by: int):
    return tirx.floormod(value, index(by))
