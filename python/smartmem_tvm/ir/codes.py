# SPDX-License-Identifier: Apache-2.0
"""Weights in codes: small integers, with a scale for each group of them along the depth of a product.

    weight[k, n] = code[k, n] * scale[k // group, n]                                     as `StoreCodes` writes it
    weight[k, n] = (code[p, g, step, j] - zero[p, g, j]) * scale[p, g, j]                in panels, see `PackCodes`

`StoreCodes` writes a weight as a kernel of its own, and `ReadCodes` puts it into the products that read it. `codes_of`
finds it in the operand of a product.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, te, tirx

from ..errors import UserError
from .walk import collect

NAME = "dequantize_weight"
"""Hint of the name of the kernels that `dequantized` describes."""
LEAST = 4096
"""Numbers of a weight, from which on its bytes matter. Chosen: four pages of float32."""
FOUR, EIGHT = 4, 8
"""Bits of a code in panels. Codes of four bits are 0 to 15, those of eight bits are signed."""
IN_WORD = 8
"""Codes of four bits in a word of 32 bits: those of eight steps along the depth, the first in the lowest bits."""
WORD, BYTE = "int32", "int8"
"""Types of the elements of panels, of four bits and of eight."""
WEIGHTS = ("stored", "float")
"""Values of the option ``weights`` that round no float."""
_CODES = (BYTE, "int16", WORD)


@dataclass(frozen=True)
class Rounding:
    """How weights are rounded.

    Attributes
    ----------
    bits : int
        Of a code: 4 or 8.
    group : int or None
        Numbers along the depth that share a scale; None for the whole depth.
    """

    bits: int
    group: int | None

    @classmethod
    def parse(cls, text: str) -> Rounding:
        """Return the rounding of a text such as ``int8`` or ``int4:64``; ``int4`` has groups of 32.

        Raises
        ------
        UserError
            If the text has another form, or the group is no multiple of 8.
        """
        name, _, size = text.partition(":")
        bits = {"int4": FOUR, "int8": EIGHT}.get(name)
        known = size.isdecimal() and int(size) > 0 and int(size) % IN_WORD == 0
        if bits is None or not (known or text == name):
            raise UserError(
                f"weights '{text}' do not exist: use {', '.join(WEIGHTS)}, int8 or int4, the last two also with the "
                f"numbers of a group, a multiple of {IN_WORD}, as in int4:64."
            )
        return cls(bits, int(size) if size else {FOUR: 32, EIGHT: None}[bits])


def dequantized(axis: int, group: int):
    """Return the function that computes a weight from its codes and scales, for ``emit_te``.

    Parameters
    ----------
    axis : int
        The dimension of the weight, of two, along which the groups lie.
    group : int
        Numbers of a group; the last one may be shorter.
    """

    def compute(codes: te.Tensor, scales: te.Tensor) -> te.Tensor:
        def at(*place):
            grouped = [tirx.floordiv(each, group) if n == axis else each for n, each in enumerate(place)]
            return codes(*place).astype("float32") * scales(*grouped)

        return te.compute(codes.shape, at, name="weight")

    return compute


@dataclass(frozen=True, eq=False)
class Codes:
    """An operand of a product that is a weight in codes.

    Attributes
    ----------
    value : expression
        The integer before its cast to float32: a load, or the difference of a code in panels and a zero point.
    load : load
        The load of the code.
    scale : load
        The scale.
    """

    value: tirx.PrimExpr
    load: ir.TensorLoad
    scale: ir.TensorLoad


def codes_of(operand) -> Codes | None:
    """Return the codes of an operand ``cast(integer) * scale``, or None if it is something else."""
    for cast, scale in ((operand.a, operand.b), (operand.b, operand.a)) if isinstance(operand, tirx.Mul) else ():
        if not isinstance(cast, tirx.Cast) or not isinstance(scale, ir.TensorLoad):
            continue
        kinds = str(cast.ty.dtype), str(scale.ty.dtype)
        found = collect(cast.value, ir.TensorLoad)
        if kinds == ("float32", "float32") and found and str(found[0].ty.dtype) in _CODES:
            return Codes(cast.value, found[0], scale)
    return None


def in_panels(words, zeros, zero: int, place: tuple, step):
    """Return the integer of a weight in panels.

    Parameters
    ----------
    words : buffer
        Codes as (panel, group, step or word, column).
    zeros : buffer or None
        Zero points as (panel, group, column); None if all of them are `zero`.
    place : tuple of expression
        Panel, group and column.
    step : expression
        Number of the step in its group.
    """
    panel, group, column = place
    if str(words.dtype) == WORD:
        eight = tirx.const(IN_WORD, step.ty.dtype)
        shift = tirx.floormod(step, eight).astype(WORD) * tirx.const(FOUR, WORD)
        word = words[panel, group, tirx.floordiv(step, eight), column]
        code = tirx.bitwise_and(tirx.shift_right(word, shift), tirx.const(15, WORD))
    else:
        code = words[panel, group, step, column].astype(WORD)
    if zeros is None:
        return code - tirx.const(zero, WORD) if zero else code
    return code - zeros[panel, group, column].astype(WORD)
