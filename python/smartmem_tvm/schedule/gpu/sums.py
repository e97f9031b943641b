# SPDX-License-Identifier: Apache-2.0
"""Sums that a thread holds: in half precision a few terms are added up as halves, and what they come to in float32.

Sums of hundreds of terms would lose three digits as halves, and each term as a float takes a conversion.
"""

from __future__ import annotations

from math import gcd

from tvm import tirx

from ...ir.half import FLOAT, HALF
from ..core.contraction import Contraction
from ..core.nest import UNROLL, VECTOR, Scope, block, index, loop, store
from .launch import registers


def factor_type(*factors, total: str) -> str:
    """The type in which factors are held and multiplied: half if all of them are and the sum is float32."""
    halves = total == FLOAT and {str(each.ty.dtype) for each in factors} == {HALF}
    return HALF if halves else total


def product_type(contraction: Contraction) -> str:
    """The type in which the operands of a contraction are held."""
    total = str(contraction.reduction.accumulator.ty.dtype)
    return factor_type(contraction.left, contraction.right, total=total)


class Sums:
    """`count` sums of products.

    Attributes
    ----------
    total : buffer
        The sums, to be set to their start and read in the end.
    few : buffer
        What terms are added to, inside of `around`.
    lanes : int
        Neighbours that are added to at once: `most`, or fewer where not as many lie next to each other; 1 for sums that
        are not of halves.

    Parameters
    ----------
    together : int
        Sums that lie next to each other.
    most : int
        Halves that arithmetic is written for at once.
    """

    def __init__(self, scope: Scope, count: int, factor: str, total: str, name: str, together: int = 1, most: int = 1):
        self.scope, self.count = scope, count
        self.lanes = gcd(together, most) if factor != total else 1
        self.total = self.few = registers(count, total, name)
        if factor != total:
            self.few = registers(count, factor, f"{name}_few")

    @property
    def buffers(self) -> list:
        """To be allocated."""
        return [self.total] if self.few is self.total else [self.total, self.few]

    def around(self, terms: tirx.Stmt) -> tirx.Stmt:
        """`terms` that are added to `few`, and what makes them part of `total`."""
        if self.few is self.total:
            return terms
        few, total = self.few, self.total
        zero = tirx.const(0, few.ty.dtype)

        def each(body) -> tirx.Stmt:
            if self.lanes == 1:
                return self.scope.loop(self.count, body, "i", UNROLL)
            return self.scope.loop(self.count // self.lanes, lambda q: self.together(q, body), "i", UNROLL)

        start = each(lambda i: store(few, zero, i))
        return block(start, terms, each(lambda i: store(total, total[_at(i)] + few[_at(i)].astype(total.ty.dtype), i)))

    def together(self, number, body) -> tirx.Stmt:
        """``body(position)`` for the `number`-th group of sums that are added to at once."""
        first = _at(number) * index(self.lanes)
        return self.scope.loop(self.lanes, lambda v: self.scope.simplify(body(first + v)), "v", VECTOR)

    def add(self, row: int, columns: int, left, right) -> list[tirx.Stmt]:
        """Add ``left * right(column)`` to the sums of a row of `columns`, from number ``row * columns`` on."""
        few = self.few
        if self.lanes == 1:
            places = [(row * columns + j, j) for j in range(columns)]
            return [store(few, few[index(at)] + left * right(index(j)), at) for at, j in places]
        return [self._add_vector(row * columns, first, left, right) for first in range(0, columns, self.lanes)]

    def _add_vector(self, before: int, first: int, left, right) -> tirx.Stmt:
        # Indices are simple as they are, and there are too many to ask.
        def one(v):
            at = v + index(before + first)
            return store(self.few, tirx.BufferLoad(self.few, [at]) + left * right(v + index(first)), at)

        return loop(self.lanes, one, "v", VECTOR)


def _at(i):
    return index(i) if isinstance(i, int) else i
