# SPDX-License-Identifier: Apache-2.0
"""Guard statements and values by the conditions that are not always true."""

from __future__ import annotations

from functools import reduce

from tvm import tirx


def guard(conditions: list, statement: tirx.Stmt) -> tirx.Stmt:
    """Return `statement` under the conditions that are not always true."""
    condition = _all(conditions)
    return statement if condition is None else tirx.IfThenElse(condition, statement, None)


def guarded_value(conditions: list, value, otherwise):
    """Return `value`, or `otherwise` where a condition fails."""
    condition = _all(conditions)
    return value if condition is None else tirx.if_then_else(condition, value, otherwise)


def _all(conditions: list):
    """Return the conjunction of the conditions that are not always true; None if there is none."""
    open_ = [each for each in conditions if not (isinstance(each, tirx.IntImm) and int(each))]
    return reduce(tirx.And, open_) if open_ else None
