# SPDX-License-Identifier: Apache-2.0
"""Split vectors of lowered OpenCL kernels into elements, and build vectors of elements."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

from ..planner.texture_form import TEXEL

_NAMES = {"int32": "int", "uint32": "uint", "float32": "float", "float64": "double"}
_LANEWISE = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod, tirx.Max, tirx.Min)


def lanes_of(value: ir.Expr) -> int:
    """Return the number of elements of a vector; 1 for a scalar."""
    return tvm_ffi.dtype(str(value.ty.dtype)).lanes


def lane(value: ir.Expr, number: int) -> ir.Expr:
    """Return one element of a vector; a scalar is returned unchanged."""
    if lanes_of(value) == 1:
        return value
    if isinstance(value, tirx.Ramp):
        return value.base + value.stride * number
    if isinstance(value, tirx.Broadcast):
        return value.value
    if isinstance(value, _LANEWISE):
        return type(value)(lane(value.a, number), lane(value.b, number))
    if isinstance(value, tirx.Cast):
        return lane(value.value, number).astype(str(value.ty.dtype).split("x")[0])
    return tirx.Shuffle([value], [number])


def vector(elements: Sequence[ir.Expr]) -> ir.Expr:
    """Return OpenCL's ``(float4)(a, b, c, d)``; TVM's own code generator would write the C++ form."""
    element = str(elements[0].ty.dtype)
    if len(elements) == 1:
        return elements[0]
    name = f"({_NAMES[element]}{len(elements)})"
    return tirx.call_pure_extern(f"{element}x{len(elements)}", name, *elements)


def chosen_lane(texel: ir.Expr, lane: ir.Expr) -> ir.Expr:
    """Return one number of a texel; one that is known at run time only, by comparisons.

    `ir.image_access` knows the form.
    """
    if isinstance(lane, tirx.IntImm):
        return tirx.Shuffle([texel], [int(lane)])
    value = tirx.Var("texel", texel.ty.dtype)
    numbers = [tirx.Shuffle([value], [number]) for number in range(TEXEL)]
    at = tirx.Var("lane", lane.ty.dtype)
    low, high = (tirx.Select(at == number, numbers[number], numbers[number - 1]) for number in (1, TEXEL - 1))
    return tirx.Let(value, texel, tirx.Let(at, lane, tirx.Select(at < TEXEL // 2, low, high)))
