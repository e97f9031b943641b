# SPDX-License-Identifier: Apache-2.0
"""Integer expressions whose values are bytes of one type: bytes widened to more bits, and choices between them."""

from __future__ import annotations

from tvm import tirx

from .index_map import is_if_then_else
from .packings import SIGNED, UNSIGNED

RANGES = {"uint8": UNSIGNED, "int8": SIGNED}
"""Type of bytes -> the least and the largest number."""
_WIDE = ("int16", "int32", "int64")
"""Types that hold all bytes of both types."""


def byte_type(value) -> str:
    """Return the type of bytes that the value of an integer expression certainly has; empty if there is none."""
    dtype = str(value.ty.dtype)
    if dtype in RANGES:
        return dtype
    if isinstance(value, tirx.Cast) and dtype in _WIDE:
        return byte_type(value.value)
    if not is_if_then_else(value) or dtype not in _WIDE:
        return ""
    sides = value.args[1:]
    found = {byte_type(each) for each in sides if not isinstance(each, tirx.IntImm)}
    kind = found.pop() if len(found) == 1 else ""
    if not kind:
        return ""
    low, high = RANGES[kind]
    return kind if all(low <= int(each) <= high for each in sides if isinstance(each, tirx.IntImm)) else ""


def as_byte(value, dtype: str):
    """Return the expression as a number of its `byte_type`."""
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, tirx.IntImm):
        return tirx.const(int(value), dtype)
    if is_if_then_else(value):
        condition, yes, no = value.args
        return tirx.if_then_else(condition, as_byte(yes, dtype), as_byte(no, dtype))
    return as_byte(value.value, dtype)
