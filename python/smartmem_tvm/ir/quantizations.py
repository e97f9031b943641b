# SPDX-License-Identifier: Apache-2.0
"""Quantizations in kernels: numbers that are rounded, get a zero point, and saturate, as ``QuantizeLinear`` does."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

_NEAREST = ir.Op.get("tirx.nearbyint")
_MOST_BOUND = 1 << 17
"""Bounds are below; `integer` is exact below 2**22."""
_ROUNDING, _ROUNDING_BITS = 12582912.0, 0x4B400000
"""1.5 * 2**23, to which an addition rounds to the nearest integer, and its bits: by definition of IEEE 754."""


@dataclass(frozen=True, eq=False)
class Quantization:
    """``int32(min(max(nearbyint(value) + zero, low), high))``, of float32.

    Attributes
    ----------
    value : expression
        The number before it is rounded.
    zero : expression or None
        The zero point as float32.
    low, high : float
        The bounds.
    """

    value: ir.Expr
    zero: ir.Expr | None
    low: float
    high: float

    @classmethod
    def of(cls, cast: tirx.Cast) -> Quantization | None:
        """Return the quantization that a cast is, or None."""
        ends = _bounds(cast.value) if str(cast.ty.dtype) == "int32" else None
        if ends is None:
            return None
        total, low, high = ends
        zero = total.b if isinstance(total, tirx.Add) else None
        rounded = total if zero is None else total.a
        known = isinstance(rounded, ir.Call) and rounded.op.same_as(_NEAREST)
        whole = zero is None or (isinstance(zero, tirx.Cast) and "int" in str(zero.value.ty.dtype))
        return cls(rounded.args[0], zero, low, high) if known and whole else None

    @property
    def ends(self) -> list[ir.Expr]:
        """Bounds of the rounded number, before the zero point is added."""
        ends = [tirx.const(each, "float32") for each in (self.low, self.high)]
        return ends if self.zero is None else [each - self.zero for each in ends]

    def integer(self, bounded: ir.Expr) -> ir.Expr:
        """Return a number within the bounds as a rounded integer: two additions, which every processor has for vectors.

        The sum with 1.5 * 2**23 has the integer in its last bits.
        """
        bits = tirx.const(_ROUNDING_BITS, "int32")
        bits = bits if self.zero is None else bits - self.zero.value.astype("int32")
        return tirx.reinterpret("int32", bounded + tirx.const(_ROUNDING, "float32")) - bits


def _bounds(value) -> tuple | None:
    """Return the float32 value inside of constant bounds, and these."""
    if not isinstance(value, tirx.Min) or not isinstance(value.a, tirx.Max) or str(value.ty.dtype) != "float32":
        return None
    ends = value.a.b, value.b
    known = all(isinstance(each, tirx.FloatImm) and abs(each.value) < _MOST_BOUND for each in ends)
    return (value.a.a, ends[0].value, ends[1].value) if known else None


def by_one_scale(value: ir.Expr) -> tuple[ir.Expr, ir.Expr] | None:
    """Return dividend and divisor of a quotient by one number, which a tensor may hold; None for any other value."""
    if not isinstance(value, tirx.Div):
        return None
    scale = value.b
    single = isinstance(scale, ir.TensorLoad) and all(isinstance(each, tirx.IntImm) for each in scale.indices)
    return (value.a, scale) if single or isinstance(scale, tirx.FloatImm) else None
