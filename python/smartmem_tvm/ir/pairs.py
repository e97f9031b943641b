# SPDX-License-Identifier: Apache-2.0
"""Pairs of 16-bit integers in one of 32 bits, and their dot product, for which x86 CPUs have an instruction.

pair(a, b) = a & 0xffff | b << 16
dot(pair(a, b), pair(c, d)) = a * c + b * d
"""

from __future__ import annotations

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from .index_map import is_if_then_else

INTEGER, BYTES = "int32", "int16"
"""The types of a pair of 16-bit integers, and of a pair of signed bytes."""
_HALF, _LOW, _BYTE = 16, 0xFFFF, 0xFF
_LEAST, _MOST = -(1 << 15), (1 << 15) - 1
_TYPES = {"bool": (0, 1), "int8": (-128, 127), "uint8": (0, 255), "int16": (_LEAST, _MOST)}
_COUNTED = (*_TYPES, INTEGER, "int64")


def pair(first, second):
    """Return the pair of two int32 expressions whose values fit into 16 bits."""
    return (first & _const(_LOW)) | (second << _const(_HALF))


def numbers_of_pair(value) -> tuple | None:
    """Return the two numbers of a `pair`, None for any other expression."""
    if not isinstance(value, tirx.BitwiseOr) or not isinstance(value.a, tirx.BitwiseAnd):
        return None
    if not isinstance(value.b, tirx.LShift):
        return None
    found = value.a.a, value.b.a
    return found if tvm_ffi.structural_equal(value, pair(*found)) else None


def dot(left, right):
    """Return the dot product ``first * first + second * second`` of two pairs."""
    return _first(left) * _first(right) + _second(left) * _second(right)


def pair_of_bytes(both):
    """Return the pair of the two signed bytes of an int16 expression, the lower byte first."""
    whole = both.astype(INTEGER)
    return pair((whole << _const(24)) >> _const(24), whole >> _const(8))


def pair_of_unsigned_bytes(both):
    """Return the pair of the two unsigned bytes of a uint16 expression, the lower byte first."""
    whole = both.astype(INTEGER)
    return (whole & _const(_BYTE)) | ((whole >> _const(8)) << _const(_HALF))


def widened(value):
    """Return a pair of 16-bit integers; a pair of bytes is widened."""
    return pair_of_bytes(value) if str(value.ty.dtype) == BYTES else value


def narrowest(value):
    """Return the int16 expression inside a `pair_of_bytes`; any other pair is returned unchanged."""
    wide = value.b.a if isinstance(value, tirx.BitwiseOr) and isinstance(value.b, tirx.LShift) else None
    both = wide.a if isinstance(wide, tirx.RShift) else None
    if not isinstance(both, tirx.Cast) or str(both.value.ty.dtype) != BYTES:
        return value
    return both.value if tvm_ffi.structural_equal(value, pair_of_bytes(both.value)) else value


def pairs_of(term) -> tuple | None:
    """Return the two pairs of a `dot`, None for any other expression."""
    sides = (term.a, term.b) if isinstance(term, tirx.Add) else ()
    if len(sides) != 2 or not all(isinstance(side, tirx.Mul) for side in sides):
        return None
    left, right = sides[1].a, sides[1].b
    if not (_is_second(left) and _is_second(right)):
        return None
    found = left.a, right.a
    return found if tvm_ffi.structural_equal(term, dot(*found)) else None


def pack_pairs(array: np.ndarray, axis: int, dtype: str = INTEGER) -> np.ndarray:
    """Pack neighbours along an axis of even size into pairs; the array's numbers must fit into 16 bits, or into 8."""
    apart = np.moveaxis(array, axis, -1).astype("int16" if dtype == INTEGER else "int8")
    packed = np.ascontiguousarray(apart).view(dtype)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis))


def has_16_bits(value, known=lambda load: None) -> bool:
    """Whether the value of an int32 expression certainly fits into 16 bits.

    Parameters
    ----------
    known : callable
        Load -> the least and the largest value, None if unknown.
    """
    ends = ends_of(value, known)
    return ends is not None and ends[0] >= _LEAST and ends[1] <= _MOST


def ends_of(value, known=lambda load: None) -> tuple[int, int] | None:
    """Return bounds of the values of an integer expression, None if there are none; `known` as for `has_16_bits`."""
    dtype = str(value.ty.dtype)
    found, whole = _ends(value, known) if dtype in _COUNTED else None, _TYPES.get(dtype)
    # A sum that may wrap around in a type of 16 bits or fewer can be any number of the type.
    return found if found is not None and (whole is None or _joined(found, whole) == whole) else whole


def _ends(value, known) -> tuple[int, int] | None:
    if isinstance(value, tirx.IntImm):
        return int(value), int(value)
    if isinstance(value, tirx.Cast):
        return ends_of(value.value, known)
    if isinstance(value, ir.TensorLoad):
        return known(value)
    if isinstance(value, tirx.Select):
        return _joined(ends_of(value.true_value, known), ends_of(value.false_value, known))
    if isinstance(value, ir.Call) and is_if_then_else(value):
        return _joined(*(ends_of(each, known) for each in value.args[1:]))
    if isinstance(value, tirx.Sub | tirx.Add):
        a, b = ends_of(value.a, known), ends_of(value.b, known)
        if a is None or b is None:
            return None
        return (a[0] - b[1], a[1] - b[0]) if isinstance(value, tirx.Sub) else (a[0] + b[0], a[1] + b[1])
    return None


def _joined(a, b) -> tuple[int, int] | None:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _const(value: int):
    return tirx.const(value, INTEGER)


def _first(value):
    return _second(value << _const(_HALF))


def _second(value):
    return value >> _const(_HALF)


def _is_second(value) -> bool:
    return isinstance(value, tirx.RShift) and isinstance(value.b, tirx.IntImm) and int(value.b) == _HALF
