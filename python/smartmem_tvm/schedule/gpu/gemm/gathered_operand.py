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
from .skeleton import Thread

_UNROLLED = 16  # most steps of a gather that are unrolled: assumed, never measured


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
    ):
        self.scope, self.operand, self.size, self.tile, self.dtype = scope, operand, size, tile, dtype
        self.texel = texel
        # A texture is read by texels: neighbouring threads read the texels of neighbouring pixels.
        self.along_depth = along_depth and texel == (1, 1)
        # One dimension: TVM would remove the padding of a second one.
        self.shared = shared(tile.slices * tile.depth * (size + tile.pad), dtype, name)

    def at(self, outer, k):
        """Return the place of an element, of a term of all slices together."""
        return k * index(self.size + self.tile.pad) + outer

    def gather(self, batch, number, step, thread: Thread) -> tirx.Stmt:
        """Fill this thread's share of tile number `number`, terms ``[step * depth, ...)`` of its slice."""
        values, terms = self.texel
        depth, size, threads = self.tile.depth // terms, self.size // values, self.tile.slice_threads
        total, simplify = depth * size, self.scope.analyzer.simplify
        count, operand = -(-total // threads), self.operand
        begin, first = number * index(self.size), step * index(self.tile.depth)

        def one(i):
            e = i * index(threads) + thread.within
            n, k = (_div(e, depth), _mod(e, depth)) if self.along_depth else (_mod(e, size), _div(e, size))
            n, k = n * index(values), k * index(terms)
            conditions = [begin + n < index(operand.outer), first + k < index(operand.depth)]
            conditions = [simplify(each) for each in conditions]

            def value(v):
                at = (begin + n + v, first + k) if values > 1 else (begin + n, first + k + v)
                element = self.scope.simplify(operand.value(batch, *at))
                return guarded_value(conditions, element, tirx.const(0, self.dtype))

            def place(v):
                term = thread.slice * index(self.tile.depth) + k
                return self.at(n + v, term) if values > 1 else self.at(n, term + v)

            fits = [] if total % threads == 0 else [simplify(e < index(total))]
            return guard(fits, self._fetch(value, place))

        if count > _UNROLLED:
            return self.scope.loop(count, one, "load")
        return block(*(one(index(i)) for i in range(count)))

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
