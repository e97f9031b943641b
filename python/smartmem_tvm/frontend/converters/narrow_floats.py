# SPDX-License-Identifier: Apache-2.0
"""Encode and decode floats of 8 bits and fewer by integer arithmetic on their bits: the same on every target."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import relax, te, tirx

from smartmem_tvm.frontend.converters.node import Node, constant

_SIGN, _MAGNITUDE, _INFINITY = 0x80000000, 0x7FFFFFFF, 0x7F800000
_SCALE_FORMAT = "float8_e8m0fnu"  # only exponents: the scales of blocks


def decode(node: Node, codes: relax.Expr, dtype: str) -> relax.Expr:
    """Return the float32 value of each code, a byte."""
    values = np.arange(256, dtype="uint8") & (2 ** ml_dtypes.finfo(dtype).bits - 1)
    table = constant(values.view(dtype).astype("float32"), "float32")
    return relax.op.take(table, node.emit(relax.op.astype(codes, "int32")), 0, mode="clip")


def encode(node: Node, x: relax.Expr, dtype: str, saturate: bool = True, mode: str = "up") -> relax.Expr:
    """Return the code of the number nearest to each float32, ties to even; ONNX's Cast has tables of the other cases.

    Parameters
    ----------
    saturate
        Whether a value that is too large becomes the largest number; otherwise it becomes infinity, or NaN in formats
        without one.
    mode
        The rounding to ``float8_e8m0fnu``: up, down or nearest. Negative numbers become its smallest number, or NaN.
    """
    if dtype == _SCALE_FORMAT:
        return node.bb.emit_te(lambda x: _elementwise(x, lambda bits: _scale_code(bits, saturate, mode)), x)
    return node.bb.emit_te(lambda x: _elementwise(x, lambda bits: _code(bits, dtype, saturate)), x)


def _elementwise(x: te.Tensor, code) -> te.Tensor:
    return te.compute(x.shape, lambda *at: code(tirx.reinterpret("uint32", x(*at))).astype("uint8"), name="encode")


def _u32(value: int) -> tirx.Expr:
    return tirx.const(value, "uint32")


def _code(bits: tirx.Expr, dtype: str, saturate: bool) -> tirx.Expr:
    """Return the code of a number of `dtype` from the bits of a float32.

    A number is an integer multiple of 2^(exponent - m) for m bits of mantissa. The code is that integer, rounded, plus
    2^m for each step of the exponent above the smallest. A carry of the rounding increments the exponent without a
    special case.
    """
    info = ml_dtypes.finfo(dtype)
    magnitude = bits & _u32(_MAGNITUDE)
    exponent = tirx.max(magnitude >> _u32(23), _u32(1))
    mantissa = (magnitude & _u32(0x7FFFFF)) | tirx.Select(magnitude >= _u32(0x800000), _u32(0x800000), _u32(0))
    smallest = _u32(info.minexp + 127)
    above = tirx.max(exponent, smallest) - smallest
    # Bits to round away; with 25 and more the result is 0.
    shift = tirx.min(_u32(23 - info.nmant) + tirx.max(exponent, smallest) - exponent, _u32(25))
    half = (_u32(1) << (shift - _u32(1))) - _u32(1)
    rounded = (mantissa + half + ((mantissa >> shift) & _u32(1))) >> shift
    code = (above << _u32(info.nmant)) + rounded
    largest, infinite, nan, negative_nan, negative_zero = (
        int(code) for code in np.array([float(info.max), np.inf, np.nan, -np.nan, -0.0]).astype(dtype).view("uint8")
    )
    overflow = _u32(largest if saturate else infinite)
    code = tirx.Select(code > _u32(largest), overflow, code)
    sign = _u32(1 << (info.bits - 1))
    # Formats without a negative zero use its code for NaN.
    negated = code | sign if negative_zero else tirx.Select(code == _u32(0), code, code | sign)
    negative = (bits & _u32(_SIGN)) != _u32(0)
    return tirx.Select(
        magnitude > _u32(_INFINITY),
        tirx.Select(negative, _u32(negative_nan), _u32(nan)),
        tirx.Select(negative, negated, code),
    )


def _scale_code(bits: tirx.Expr, saturate: bool, mode: str) -> tirx.Expr:
    exponent, fraction = (bits & _u32(_MAGNITUDE)) >> _u32(23), bits & _u32(0x7FFFFF)
    # Zero's exponent is that of the smallest code, 2^-127, which is half of the smallest normal float32.
    least = tirx.Select(exponent > _u32(0), _u32(0), _u32(0x400000))
    up = {
        "up": fraction > least,
        "down": tirx.const(False),
        "nearest": fraction >= tirx.Select(exponent > _u32(0), _u32(0x400000), _u32(0x400001)),
    }
    if mode not in up:
        raise ValueError(f"its round_mode '{mode}' is none of {', '.join(up)}")
    rounded = exponent + tirx.Select(up[mode], _u32(1), _u32(0))
    code = tirx.Select((bits & _u32(_SIGN)) != _u32(0), _u32(0), tirx.min(rounded, _u32(0xFE)))
    # Bits outside of this range become NaN: with `saturate` NaN itself, without it also all numbers except 2^-127 to
    # 2^127.
    first, last = (0, _INFINITY) if saturate else (0x400000, 0x7F000000)
    bits = bits & _u32(_MAGNITUDE) if saturate else bits
    return tirx.Select(tirx.all(bits >= _u32(first), bits <= _u32(last)), code, _u32(0xFF))
