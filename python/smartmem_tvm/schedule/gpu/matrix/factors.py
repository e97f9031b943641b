# SPDX-License-Identifier: Apache-2.0
"""The factors of a product in the types of matrix instructions: float16, bfloat16, tf32, or bytes.

    float16    float(x[i, k]) * float(w[k, j]), or float(x[i, k] * w[k, j]), of float16 tensors
    bfloat16   float(x[i, k]) * float(w[k, j]), of bfloat16 tensors
    bytes      int32(x[i, k]) * int32(w[k, j]), of int8 and uint8 tensors, also one of each
    rounded    any float32 product in a kernel whose factors may be rounded (``smartmem.factors``)

The product of two float16, or of two bfloat16, numbers is exact in float32: an instruction that multiplies them and
adds the products in float32 changes no term. Float32 factors are rounded only if the kernel's attribute allows it.
Bytes are multiplied and added exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import tirx

from ....ir.byte_numbers import as_byte, byte_type
from ....ir.half import FLOAT, is_exactly, rounded_to
from ..gemm.operand import Operand
from ..gemm.product import MatmulProduct
from ..gemm.ptx import ELEMENTS, SHORT, Element, element_of_bytes


@dataclass(frozen=True, eq=False)
class Factors:
    """Both operands of a product, in the type of the multiplication.

    Attributes
    ----------
    left, right : Operand
    element : Element
    """

    left: Operand
    right: Operand
    element: Element


def factors_of(product: MatmulProduct, rounds_to: str = "") -> Factors | None:
    """Return the factors of a product; None if they are float32, or of two types, and may not be rounded.

    Parameters
    ----------
    rounds_to : str
        A name in `ptx.ELEMENTS`, or empty.
    """
    both = (product.contraction.left, product.contraction.right)
    kinds = tuple(map(byte_type, both))
    if all(kinds):
        left, right = (_in_bytes(*each) for each in zip((product.left, product.right), kinds, strict=True))
        return Factors(left, right, element_of_bytes(*kinds))
    name = next((name for name in SHORT if all(is_exactly(each, name) for each in both)), rounds_to)
    if not name:
        return None
    element = ELEMENTS[name]
    return Factors(_rounded(product.left, element), _rounded(product.right, element), element)


def _rounded(operand: Operand, element: Element) -> Operand:
    if element.dtype == FLOAT:
        return replace(operand, value=lambda *at: _as_float(operand.value(*at)))
    return replace(operand, value=lambda *at: rounded_to(operand.value(*at), element.dtype))


def _in_bytes(operand: Operand, kind: str) -> Operand:
    return replace(operand, value=lambda *at: as_byte(operand.value(*at), kind))


def _as_float(value) -> tirx.Expr:
    return value if str(value.ty.dtype) == FLOAT else value.astype(FLOAT)
