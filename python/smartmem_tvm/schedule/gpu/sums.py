# SPDX-License-Identifier: Apache-2.0
"""Accumulators of a thread: a few terms are added up in float16, and these short sums are added up in float32.

A float16 sum of hundreds of terms would lose three digits, and a float32 sum of single terms would convert each term.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from tvm import tirx

from ...ir.half import FLOAT, HALF
from ..core.contraction import Contraction
from ..core.nest import UNROLL, VECTOR, Scope, allocate, block, index, loop, store
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
    settled : bool
        Whether `settle` keeps the conversions of finished sums behind the loop over the terms.
    dot : callable, optional
        ``(sums, at, left, right) -> statement`` that adds one product to a sum; by default a multiplication.
    """

    def __init__(
        self,
        scope: Scope,
        count: int,
        factor: str,
        total: str,
        name: str,
        together: int = 1,
        most: int = 1,
        settled: bool = False,
        dot: Callable | None = None,
    ):
        self.scope, self.count, self.dot = scope, count, dot
        self.rounds = registers(1, "int32", f"{name}_rounds") if settled and factor != total else None
        self.lanes = gcd(together, most) if factor != total else 1
        self.total = self.few = registers(count, total, name)
        if factor != total:
            self.few = registers(count, factor, f"{name}_few")

    @property
    def buffers(self) -> list:
        """The buffers that the caller allocates."""
        few = [] if self.few is self.total else [self.few]
        return [self.total, *few, *([] if self.rounds is None else [self.rounds])]

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

    def count_round(self, number) -> tirx.Stmt | None:
        """Note, in the loop over the terms, the number of this trip; see `settle`."""
        return None if self.rounds is None else store(self.rounds, (number + index(1)).astype("int32"), 0)

    def settle(self) -> tirx.Stmt | None:
        """Multiply the sums, behind the loop, by one, which the compiler cannot know to be one.

        Mesa's compiler moves a conversion to float16 behind a loop to the additions in the loop
        (`nir_opt_phi_precision`), where each trip then converts all sums: 64 of 845 slots of a GEMM's inner loop on
        Adreno 740. It does so only if a conversion is all that reads a sum. The factor is the number of trips, at most
        one, which is in a register already.
        """
        if self.rounds is None:
            return None
        one = registers(1, self.total.ty.dtype, "one")
        trips = tirx.Min(self.rounds[0], tirx.const(1, "int32")).astype(one.ty.dtype)

        def each(i):
            return store(self.total, self.total[_at(i)] * one[0], i)

        return allocate([one], block(store(one, trips, 0), self.scope.loop(self.count, each, "i", UNROLL)))

    def together(self, number, body) -> tirx.Stmt:
        """Return a vector loop of ``body(position)`` over the `number`-th vector of `lanes` accumulators."""
        first = _at(number) * index(self.lanes)
        return self.scope.loop(self.lanes, lambda v: self.scope.simplify(body(first + v)), "v", VECTOR)

    def add(self, row: int, columns: int, left, right) -> list[tirx.Stmt]:
        """Add ``left * right(column)`` to the sums of a row of `columns`, from number ``row * columns`` on."""
        few = self.few
        if self.lanes == 1:
            places = [(row * columns + j, j) for j in range(columns)]
            if self.dot is not None:
                return [self.dot(few, index(at), left, right(index(j))) for at, j in places]
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
