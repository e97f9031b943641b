# SPDX-License-Identifier: Apache-2.0
"""Widen a 16-bit expression to float32: matrix instructions leave their sums in registers as float32 anyway."""

from __future__ import annotations

from tvm import ir, tirx

from ....ir.half import FLOAT, RANGES
from ....ir.index_map import is_if_then_else

_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or),
)


def widened(value):
    """Return the expression without intermediate rounding to 16 bits; integers, conditions, indices do not change."""
    if not isinstance(value.ty, ir.PrimType):
        return value
    dtype = str(value.ty.dtype)
    if isinstance(value, tirx.Cast):
        inner = widened(value.value)
        if dtype == FLOAT or dtype in RANGES:
            return inner if str(inner.ty.dtype) == FLOAT else inner.astype(FLOAT)
        return inner.astype(dtype)
    if isinstance(value, ir.TensorLoad):
        return value.astype(FLOAT) if dtype in RANGES else value
    if isinstance(value, tirx.FloatImm):
        return tirx.FloatImm(FLOAT, value.value) if dtype in RANGES else value
    if isinstance(value, _BINARY):
        return type(value)(widened(value.a), widened(value.b))
    if isinstance(value, tirx.Not):
        return tirx.Not(widened(value.a))
    if isinstance(value, tirx.Select):
        return tirx.Select(*map(widened, (value.condition, value.true_value, value.false_value)))
    if is_if_then_else(value):
        return tirx.if_then_else(*map(widened, value.args))
    if isinstance(value, ir.Call):
        return tirx.call_intrin(FLOAT if dtype in RANGES else dtype, value.op, *map(widened, value.args))
    return value
