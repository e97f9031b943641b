# SPDX-License-Identifier: Apache-2.0
"""Blends: selects whose two values may both be computed, so that a vector instruction can choose between them."""

from __future__ import annotations

from tvm import ir, tirx

from .index_map import is_if_then_else
from .walk import collect_outside, contains, loads

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def is_blend(select: tirx.Select) -> bool:
    """Whether both values of a select may be computed at every point.

    The condition must depend only on loaded numbers, and the indices of the values on no loaded number and no choice.
    Any other select may guard a load out of bounds or a division by zero.
    """
    if collect_outside(select.condition, ir.Var, skip=ir.TensorLoad):
        return False
    values = (select.true_value, select.false_value)
    decided = any(loads(at) for value in values for load in loads(value) for at in load.indices[:])
    return not decided and not any(contains(value, (ir.Call, *_DIVISIONS), _may_fail) for value in values)


def branches(node) -> bool:
    """Whether an expression contains a choice that is no blend: TVM makes a branch of it, SIMD lane by SIMD lane."""
    return contains(node, (ir.Call, tirx.Select), _is_branch)


def _is_branch(node) -> bool:
    return is_if_then_else(node) if isinstance(node, ir.Call) else not is_blend(node)


def _may_fail(node) -> bool:
    if isinstance(node, ir.Call):
        return is_if_then_else(node)
    return not str(node.ty.dtype).startswith(("float", "bfloat")) and not isinstance(node.b, tirx.IntImm)
