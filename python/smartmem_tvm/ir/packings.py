# SPDX-License-Identifier: Apache-2.0
"""Small integers of a product, several in one of 32 bits: two of 16 bits (`ir.pairs`), or four bytes (a quad).

quad(a, b, c, d) = a & 0xff | (b & 0xff) << 8 | (c & 0xff) << 16 | d << 24
dot_of_quads(quad(a, b, c, d), quad(e, f, g, h)) = a * e + b * f + c * g + d * h

The bytes of the first quad of a dot are unsigned, those of the second one signed, as x86 CPUs with VNNI have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi
from tvm import tirx

from .pairs import INTEGER, dot, ends_of, narrowest, pair, pairs_of, widened

UNSIGNED, SIGNED, SHORT = (0, 255), (-128, 127), (-(1 << 15), (1 << 15) - 1)
"""The least and the largest number of a byte, and of 16 bits."""
_BYTE, _MASK, _SIGN, _LAST = 8, 0xFF, 0x80, 24


@dataclass(frozen=True)
class Packing:
    """How many integers are in one of 32 bits, and what their dot product is.

    Attributes
    ----------
    name : str
    numbers : int
        Integers in one.
    ranges : tuple of (int, int)
        The least and the largest number of the left and of the right operand.
    pack : callable
        Sequence of `numbers` int32 expressions -> the expression that holds them.
    product : callable
        Two packed operands -> their dot product; for `turned` ones the right operand comes first.
    turned : bool
        The right operand is the one with the first of `ranges` of the packing that is not turned.
    """

    name: str
    numbers: int
    ranges: tuple[tuple[int, int], tuple[int, int]]
    pack: Callable[[Sequence], object]
    product: Callable
    turned: bool = False

    def dot(self, left, right):
        """Return the dot product of two packed operands."""
        return self.product(*((right, left) if self.turned else (left, right)))

    def turn(self) -> Packing:
        """Return the same packing with the operands exchanged; pairs are the same for both."""
        if self.ranges[0] == self.ranges[1]:
            return self
        return replace(self, ranges=self.ranges[::-1], turned=not self.turned)

    def take(self, left, right, known) -> bool:
        """Whether two operands certainly fit; `known` gives the least and the largest value of a load, or None."""
        found = (ends_of(each, known) for each in (left, right))
        return all(e is not None and low <= e[0] and e[1] <= high for e, (low, high) in zip(found, self.ranges))


def quad(numbers: Sequence):
    """Return the quad of four int32 expressions whose values fit into bytes, signed or unsigned."""
    first, *others, last = numbers
    found = first & _const(_MASK)
    for at, each in enumerate(others, start=1):
        found = found | ((each & _const(_MASK)) << _const(at * _BYTE))
    # As a signed byte: a constant above 127, as a zero point is, would leave 32 bits when TVM folds the shift.
    signed = ((last & _const(_MASK)) ^ _const(_SIGN)) - _const(_SIGN)
    return found | (signed << _const(_LAST))


def numbers_of_quad(value) -> tuple | None:
    """Return the four numbers of a `quad`, None for any other expression."""
    found, others = [], value
    for _ in range(3):
        if not isinstance(others, tirx.BitwiseOr):
            return None
        others, last = others.a, others.b
        found.append(last)
    if not isinstance(others, tirx.BitwiseAnd) or not all(isinstance(each, tirx.LShift) for each in found):
        return None
    masked = [found[0].a.a.a if isinstance(found[0].a, tirx.Sub) else None, found[1].a, found[2].a, others]
    if not all(isinstance(each, tirx.BitwiseAnd) for each in masked):
        return None
    numbers = tuple(each.a for each in reversed(masked))
    return numbers if tvm_ffi.structural_equal(value, quad(numbers)) else None


def dot_of_quads(unsigned, signed):
    """Return the sum of the products of the bytes at equal places of two quads."""
    total = None
    for shift in range(0, _LAST, _BYTE):
        product = ((unsigned >> _const(shift)) & _const(_MASK)) * ((signed << _const(_LAST - shift)) >> _const(_LAST))
        total = product if total is None else total + product
    return total + ((unsigned >> _const(_LAST)) & _const(_MASK)) * (signed >> _const(_LAST))


def pack_quads(array: np.ndarray, axis: int) -> np.ndarray:
    """Pack neighbours along an axis, whose size is a multiple of four, into quads; each number fits into a byte."""
    apart = np.moveaxis(array, axis, -1).astype("uint8")
    packed = np.ascontiguousarray(apart).view(INTEGER)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis))


PAIRS = Packing("pairs of int16", 2, (SHORT, SHORT), lambda two: pair(*two), lambda a, b: dot(widened(a), widened(b)))
QUADS = Packing("quads of bytes", 4, (UNSIGNED, SIGNED), quad, dot_of_quads)
KNOWN = (QUADS, PAIRS)
"""All packings, by whose names the table of micro-kernels finds them."""


def packed_factors(term) -> tuple[Packing, tuple] | None:
    """Return the packing and the two operands of a dot product, None for any other expression."""
    pairs = pairs_of(term)
    if pairs is not None:
        return PAIRS, tuple(map(narrowest, pairs))
    last = term.b if isinstance(term, tirx.Add) else None
    if not isinstance(last, tirx.Mul) or not isinstance(last.a, tirx.BitwiseAnd):
        return None
    if not all(isinstance(each, tirx.RShift) for each in (last.a.a, last.b)):
        return None
    found = last.a.a.a, last.b.a
    return (QUADS, found) if tvm_ffi.structural_equal(term, dot_of_quads(*found)) else None


def _const(value: int):
    return tirx.const(value, INTEGER)
