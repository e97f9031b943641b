# SPDX-License-Identifier: Apache-2.0
"""Products of bytes for register tiles of threads, with exact sums.

QuadProduct     four bytes in one number of 32 bits along the depth; one instruction multiplies four by four and adds
                them to a sum (dp4a, cl_khr_integer_dot_product)
FloatProduct    elsewhere: float32 numbers, whose sums over a tile of terms are exact, and are added as integers
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import tvm_ffi
from tvm import ir, tirx

from ....ir.byte_numbers import as_byte, byte_type
from ....ir.half import FLOAT
from ....ir.index_map import is_if_then_else
from ....ir.kernel import substitute
from ....ir.packings import QUADS, quad
from ....ir.pairs import INTEGER
from ....target import Limits
from ...core.nest import fresh, index, store
from ...core.words import word_of
from . import ptx
from .operand import Operand
from .product import MatmulProduct

_OPENCL = {
    ("uint8", "uint8"): "dot_4x8packed_uu_uint",
    ("uint8", "int8"): "dot_4x8packed_us_int",
    ("int8", "uint8"): "dot_4x8packed_su_int",
    ("int8", "int8"): "dot_4x8packed_ss_int",
}
"""Types of both operands -> the function of cl_khr_integer_dot_product."""


def for_threads(product: MatmulProduct, limits: Limits, gathered: bool = False) -> MatmulProduct:
    """Return a product as register tiles of threads multiply it: one of bytes in quads, or in floats.

    Parameters
    ----------
    gathered : bool
        Elements are brought one by one: quads are then worth their shifts only where they are words of memory. A 3 x 3
        convolution of 64 channels over 28 x 28 in an Adreno 740's code takes 39 us to issue in quads that are put
        together, 28 in floats (Mesa 26.2.6, 2026-11-29).
    """
    sides = product.contraction.left, product.contraction.right
    kinds = tuple(map(byte_type, sides))
    if str(product.reduction.accumulator.ty.dtype) != INTEGER or not all(kinds):
        return product
    if limits.byte_dots:
        quads = QuadProduct(product.contraction, kinds, limits.byte_dots)
        if not gathered or quads.in_words:
            return quads
    return FloatProduct(product.contraction)


@dataclass(frozen=True, eq=False)
class FloatProduct(MatmulProduct):
    """A product of bytes whose operands are held in float32.

    A float32 has 24 bits: it holds the sum of 258 products of bytes, and more than any tile of terms has.
    """

    @property
    def factor(self) -> str:
        """The type that holds and multiplies operands."""
        return FLOAT

    @cached_property
    def left(self) -> Operand:
        """The left operand as floats."""
        return _converted(super().left)

    @cached_property
    def right(self) -> Operand:
        """The right operand as floats."""
        return _converted(super().right)


def _converted(operand: Operand) -> Operand:
    value = operand.value
    return Operand(lambda *at: value(*at).astype(FLOAT), operand.batch, operand.outer, operand.depth)


@dataclass(frozen=True, eq=False)
class QuadProduct(MatmulProduct):
    """A product of bytes whose terms are quads.

    Attributes
    ----------
    kinds : (str, str)
        Types of the bytes of both operands.
    language : str
        Kind of the target: cuda or opencl.
    """

    kinds: tuple[str, str]
    language: str

    @cached_property
    def depth(self) -> int:
        """Quads along the depth; the last one is filled up with zeros."""
        return -(-super().depth // QUADS.numbers)

    @cached_property
    def left(self) -> Operand:
        """The left operand; its terms are quads."""
        return self._sides[0][0]

    @cached_property
    def right(self) -> Operand:
        """The right operand; its terms are quads."""
        return self._sides[1][0]

    @cached_property
    def words(self) -> dict:
        """Tensors of words that operands load, and that do not exist -> tensors of bytes in their place."""
        return {word.source: source for _, found in self._sides for word, source in found}

    @property
    def in_words(self) -> bool:
        """Whether quads of both operands are neighbours in memory."""
        return all(found for _, found in self._sides)

    @cached_property
    def _sides(self) -> tuple:
        whole = MatmulProduct(self.contraction)
        return tuple(_in_quads(each, kind) for each, kind in zip((whole.left, whole.right), self.kinds, strict=True))

    def add(self, sums, at, left, right) -> tirx.Stmt:
        """Return ``sums[at] += left @ right`` of two quads."""
        unsigned = set(self.kinds) == {"uint8"}
        if self.language == "cuda" and not unsigned:
            return ptx.dot_of_bytes(sums[at], left, right, self.kinds)
        words = [tirx.reinterpret("uint32", each) for each in (left, right)]
        if self.language == "cuda":  # PTX wants a sum without a sign there, the function does not
            total = tirx.call_pure_extern("uint32", "__dp4a", *words, tirx.reinterpret("uint32", sums[at]))
            return store(sums, tirx.reinterpret(INTEGER, total), at)
        dot = _dot("uint32" if unsigned else INTEGER, _OPENCL[self.kinds], *words)
        return store(sums, sums[at] + (tirx.reinterpret(INTEGER, dot) if unsigned else dot), at)


def _dot(dtype: str, name: str, left, right):
    return tirx.call_pure_extern(dtype, name, left, right)


def _in_quads(operand: Operand, kind: str) -> tuple[Operand, list]:
    """Return an operand of quads, and the words in it with the tensors of bytes in their place."""
    b, outer, k, count = fresh("b"), fresh("outer"), fresh("k"), QUADS.numbers
    terms = [k * index(count) + index(n) for n in range(count)]
    numbers = [as_byte(operand.value(b, outer, term), kind) for term in terms]
    if operand.depth % count:
        zero = tirx.const(0, kind)
        numbers = [
            tirx.if_then_else(term < index(operand.depth), number, zero)
            for term, number in zip(terms, numbers, strict=True)
        ]
    depth, found = -(-operand.depth // count), []
    value = _quad(numbers, {b: operand.batch, outer: operand.outer, k: depth}, found)

    def at(batch, row, term):
        return substitute(value, {b: batch, outer: row, k: term})

    return Operand(at, operand.batch, operand.outer, depth), found


def _quad(numbers: list, extents: dict, found: list):
    """Return the quad of four bytes; one that is a word of memory, or is chosen from quads, as such."""
    if all(isinstance(each, ir.Call) and is_if_then_else(each) for each in numbers):
        condition = numbers[0].args[0]
        if all(tvm_ffi.structural_equal(each.args[0], condition) for each in numbers):
            sides = (_quad([each.args[at] for each in numbers], extents, found) for at in (1, 2))
            return tirx.if_then_else(condition, *sides)
    whole = quad([each.astype(INTEGER) for each in numbers])
    word = word_of(whole, extents) if all(isinstance(each, ir.TensorLoad) for each in numbers) else None
    if word is None:
        return whole
    found.append(word)
    return word[0]
