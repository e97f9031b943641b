# SPDX-License-Identifier: Apache-2.0
"""Weights in codes: small integers, with a scale for each group of them along the depth of a product.

    weight[k, n] = code[k, n] * scale[k // group, n]                                     as `StoreCodes` writes it
    weight[k, n] = (code[p, g, step, j] - zero[p, g, j]) * scale[p, g, j]                in panels, see `PackCodes`
    row[m, k] = code[m, k // group, k % group] * scale[m, k // group]                    as `RoundRows` writes it

`StoreCodes` writes a weight as a kernel of its own, and `ReadCodes` puts it into the products that read it. `codes_of`
finds it in the operand of a product.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, te, tirx

from ..errors import UserError
from .kernel import Kernel
from .walk import collect, collect_outside, contains

NAME = "dequantize_weight"
"""Hint of the name of the kernels that `dequantized` describes."""
ROWS, ASKED = "dequantize_rows", "rows_in_bytes"
"""Hints of the names of kernels that compute rows from their codes, and of copies whose readers may read rows so."""
LEAST = 4096
"""Numbers of a weight, from which on its bytes matter. Chosen: four pages of float32."""
FOUR, EIGHT = 4, 8
"""Bits of a code in panels. Codes of four bits are 0 to 15, those of eight bits are signed."""
IN_WORD = 8
"""Codes of four bits in a word of 32 bits: those of eight steps along the depth, the first in the lowest bits."""
BYTES_IN_WORD = 4
"""Codes of eight bits in such a word, as GPUs read them."""
WORD, BYTE = "int32", "int8"
"""Types of the elements of panels: words of codes of four bits, and on GPUs of eight; else single codes of eight."""
WEIGHTS = ("stored", "float")
"""Values of the option ``weights`` that round no float."""
WORD_BITS = 32
"""Bits of a word, by definition."""
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
        The integer before its cast to float: a load, or the difference of a code in panels and a zero point.
    load : load
        The load of the code.
    scale : load
        The scale.
    """

    value: tirx.PrimExpr
    load: ir.TensorLoad
    scale: ir.TensorLoad


def codes_of(operand) -> Codes | None:
    """Return the codes of an operand ``cast(integer) * scale``, perhaps of a scale in float16; else None.

    None as well where data name the place of the code: see `gathered_codes`.
    """
    found = _coded(operand)
    return None if found is None or _is_gathered(found.load) else found


def gathered_codes(operand) -> Codes | None:
    """Return the same where a tensor names the place of the code, as of rows of a table; else None."""
    found = _coded(operand)
    return found if found is not None and _is_gathered(found.load) else None


def _is_gathered(load: ir.TensorLoad) -> bool:
    return any(contains(place, ir.TensorLoad) for place in load.indices)


def _coded(operand) -> Codes | None:
    for cast, factor in ((operand.a, operand.b), (operand.b, operand.a)) if isinstance(operand, tirx.Mul) else ():
        scale = factor.value if isinstance(factor, tirx.Cast) else factor
        if not isinstance(cast, tirx.Cast) or not isinstance(scale, ir.TensorLoad):
            continue
        kinds = {str(each.ty.dtype) for each in (cast, factor, scale)}
        found = collect_outside(cast.value, ir.TensorLoad, ir.TensorLoad)
        if kinds <= {"float32", "float16"} and found and str(found[0].ty.dtype) in _CODES:
            return Codes(cast.value, found[0], scale)
    return None


def is_scale(kernel: Kernel, buffer) -> bool:
    """Whether a kernel reads a buffer as the scales of codes."""
    products = (each for stage in kernel.stages for each in collect(stage.body, tirx.Mul))
    found = filter(None, map(codes_of, products))
    return any(each.scale.source.same_as(buffer) for each in found)


def bits_of(codes: Codes) -> tuple[int, int]:
    """Return the bits of a code in panels, and how many codes an element of them has."""
    masks = [int(each.b) for each in collect(codes.value, tirx.BitwiseAnd)]
    if not masks:
        return EIGHT, 1
    return (FOUR, IN_WORD) if masks[0] == _masked(FOUR) else (EIGHT, BYTES_IN_WORD)


def in_panels(words, zeros, zero: int, place: tuple, step, in_word: int):
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
    in_word : int
        Codes in an element of `words`.
    """
    panel, group, column = place
    if in_word > 1:
        many, bits = tirx.const(in_word, step.ty.dtype), WORD_BITS // in_word
        shift = tirx.floormod(step, many).astype(WORD) * tirx.const(bits, WORD)
        word = words[panel, group, tirx.floordiv(step, many), column]
        code = tirx.bitwise_and(tirx.shift_right(word, shift), tirx.const(_masked(bits), WORD))
    else:
        code = words[panel, group, step, column].astype(WORD)
    if zeros is None:
        return code - tirx.const(zero, WORD) if zero else code
    return code - zeros[panel, group, column].astype(WORD)


def _masked(bits: int) -> int:
    """Return the mask of a code in the lowest bits of a word."""
    return (1 << bits) - 1


def rows_in_bytes(rows: te.Tensor) -> te.Tensor:
    """Return a copy of rows, which stands for rows whose products may round them to bytes (`RoundRows`)."""
    return te.compute(rows.shape, lambda *place: rows(*place), name="rows")
