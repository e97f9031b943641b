# SPDX-License-Identifier: Apache-2.0
"""Accumulators of a thread: a few terms are added up in float16, and these short sums are added up in float32.

A float16 sum of hundreds of terms would lose three digits, and a float32 sum of single terms would convert each term.
"""

from __future__ import annotations

from math import gcd

from tvm import tirx

from ...ir.half import FLOAT, HALF
from ..core.contraction import Contraction
from ..core.nest import UNROLL, VECTOR, Scope, block, index, loop, store
from .launch import registers


def factor_type(*factors, total: str) -> str:
    """Return the type that holds and multiplies factors: float16 if all of them are and the sum is float32."""
    halves = total == FLOAT and {str(each.ty.dtype) for each in factors} == {HALF}
    return HALF if halves else total


def product_type(contraction: Contraction) -> str:
    """Return the type that holds the operands of a contraction."""
    total = str(contraction.reduction.accumulator.ty.dtype)
    return factor_type(contraction.left, contraction.right, total=total)


class Sums:
    """`count` accumulators of products.

    Attributes
    ----------
    total : buffer
        The sums; the caller initialises them and reads them at the end.
    few : buffer
        The accumulators that terms are added to inside `around`.
    lanes : int
        Neighbouring accumulators that one vector addition updates: `most`, or fewer if fewer are contiguous; 1 if the
        terms are not float16.

    Parameters
    ----------
    together : int
        Accumulators that are contiguous.
    most : int
        Widest vector of float16 arithmetic, in elements.
    """

    def __init__(self, scope: Scope, count: int, factor: str, total: str, name: str, together: int = 1, most: int = 1):
        self.scope, self.count = scope, count
        self.lanes = gcd(together, most) if factor != total else 1
        self.total = self.few = registers(count, total, name)
        if factor != total:
            self.few = registers(count, factor, f"{name}_few")

    @property
    def buffers(self) -> list:
        """The buffers that the caller allocates."""
        return [self.total] if self.few is self.total else [self.total, self.few]

    def around(self, terms: tirx.Stmt) -> tirx.Stmt:
        """Return `terms`, which add to `few`, between the statements that clear `few` and add it to `total`."""
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
        """Return a vector loop of ``body(position)`` over the `number`-th vector of `lanes` accumulators."""
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
        # These indices need no simplification, and simplifying so many would be slow.
        def one(v):
            at = v + index(before + first)
            return store(self.few, tirx.BufferLoad(self.few, [at]) + left * right(v + index(first)), at)

        return loop(self.lanes, one, "v", VECTOR)


def _at(i):
    return index(i) if isinstance(i, int) else i
