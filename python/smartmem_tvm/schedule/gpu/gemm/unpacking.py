# SPDX-License-Identifier: Apache-2.0
"""Codes of a word as numbers, without a conversion.

A mask leaves a code at its place in the mantissa of a constant, whose exponent gives it its size, and the constant is
subtracted, which is exact. So codes need a shift only where a mantissa ends: in float32 one of eight, in float16 three.
GPUs convert integers at a quarter of the rate of such arithmetic, or less.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp

from tvm import tirx

from ....ir.codes import WORD, codes_of
from ....ir.half import FLOAT, HALF
from ...core.coded_panels import panels_of

_MANTISSA = {FLOAT: (23, 127), HALF: (10, 15)}  # bits of a mantissa, and the exponent's bias, by definition of IEEE 754


@dataclass(frozen=True)
class Unpacking:
    """How a code of a word becomes a number.

    Attributes
    ----------
    bits : int
        Of a code.
    dtype : str
        The type of the number: float32 or float16.
    zero : int
        The zero point, which comes off each code.
    unit : float
        The number of a code of one, a power of two.
    """

    bits: int
    dtype: str
    zero: int
    unit: float = 1.0

    def number(self, word, t: int):
        """Return ``(code - zero) * unit`` for code `t` of a word."""
        length, bias = _MANTISSA[self.dtype]
        turn, place = divmod(t, length // self.bits)
        shift = turn * (length // self.bits) * self.bits
        moved = tirx.shift_right(word, tirx.const(shift, WORD)) if shift else word
        at, largest = place * self.bits, 2.0 ** (length - place * self.bits) * self.unit
        exponent = bias + frexp(largest)[1] - 1
        mask, frame = ((1 << self.bits) - 1) << at, exponent << length
        found = tirx.bitwise_or(tirx.bitwise_and(moved, tirx.const(mask, WORD)), tirx.const(frame, WORD))
        found = found if self.dtype == FLOAT else found.astype("uint16")
        return tirx.reinterpret(self.dtype, found) - tirx.const(largest + self.zero * self.unit, self.dtype)


def unpacked(operand):
    """Return an operand of a product whose codes, if it reads words of them, become numbers in this way."""
    panels = panels_of(operand)
    if panels is None or panels.in_word == 1:
        return operand
    codes, dtype = codes_of(operand), str(operand.ty.dtype)
    code = codes.value.a if isinstance(codes.value, tirx.Sub) else codes.value  # (word >> shift) & mask
    number = Unpacking(panels.bits, dtype, panels.zero).number(code.a, 0)
    if panels.zeros is not None:
        number = number - codes.value.b.astype(dtype)
    scale = next(each for each in (operand.a, operand.b) if not _is_code(each, codes))
    return number * scale


def _is_code(factor, codes) -> bool:
    return isinstance(factor, tirx.Cast) and factor.value.same_as(codes.value)
