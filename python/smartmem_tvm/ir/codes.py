# SPDX-License-Identifier: Apache-2.0
"""Weights in codes: small integers, with a scale for each group of them along the depth of a product.

    weight[k, n] = code[k, n] * scale[k // group, n]                                     as `StoreCodes` writes it
    weight[k, n] = (code[panel, ...] - zero[panel, g, column]) * scale[panel, g, column]  in panels, see `PackCodes`

`StoreCodes` writes a weight as a kernel of its own, and `ReadCodes` puts it into the products that read it. `codes_of`
finds it in the operand of a product.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, te, tirx

from .walk import collect

NAME = "dequantize_weight"
"""Hint of the name of the kernels that `dequantized` describes."""
FOUR, EIGHT = 4, 8
"""Bits of a code in panels. Codes of four bits are 0 to 15, those of eight bits are signed."""
IN_WORD = 8
"""Codes of four bits in a word of 32 bits: those of eight steps along the depth, the first in the lowest bits."""
WORD, BYTE = "int32", "int8"
"""Types of the elements of panels, of four bits and of eight."""


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
    code : expression
        The code before its cast to float32: a load of an integer, or some bits of one.
    load : load
        The load in `code`.
    scale : load
        The scale.
    zero : expression or None
        The zero point in float32: a number, or the cast of a load; None where it is 0.
    """

    code: tirx.PrimExpr
    load: ir.TensorLoad
    scale: ir.TensorLoad
    zero: tirx.PrimExpr | None


def codes_of(operand) -> Codes | None:
    """Return the codes of an operand ``(cast(code) - zero) * scale``, or None if it is something else."""
    for value, scale in ((operand.a, operand.b), (operand.b, operand.a)) if isinstance(operand, tirx.Mul) else ():
        zero = None
        if isinstance(value, tirx.Sub):
            value, zero = value.a, value.b
        if not isinstance(scale, ir.TensorLoad) or not isinstance(value, tirx.Cast):
            continue
        found = collect(value.value, ir.TensorLoad)
        if len(found) == 1 and str(value.ty.dtype) == str(scale.ty.dtype) == "float32" and _is_code(found[0]):
            return Codes(value.value, found[0], scale, zero)
    return None


def _is_code(load: ir.TensorLoad) -> bool:
    return str(load.ty.dtype) in (BYTE, "int16", WORD)


def nibble(word, step):
    """Return code number `step`, from 0 to 7, of a word of eight codes of four bits."""
    place = step if str(step.ty.dtype) == WORD else step.astype(WORD)
    return tirx.bitwise_and(tirx.shift_right(word, place * tirx.const(FOUR, WORD)), tirx.const(15, WORD))
