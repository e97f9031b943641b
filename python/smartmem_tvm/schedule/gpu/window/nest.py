# SPDX-License-Identifier: Apache-2.0
"""What the nests of windows share: stages folded into what reads them, and conditions."""

from __future__ import annotations

from functools import reduce

from tvm import tirx

from ....ir.kernel import Kernel
from ...core.inline import fits, fold_where, is_result


def folded(kernel: Kernel) -> Kernel | None:
    """Every element-wise stage folded into its readers, or None where that grows out of proportion.

    What a stage computes may be computed once for each reader: a GPU has more arithmetic than memory, and a padded
    copy would be a kernel of its own.
    """
    result = fold_where(kernel, lambda stage, reader, _: fits(stage, reader))
    left = any(stage.is_pointwise and not is_result(result, stage) for stage in result.stages)
    return None if left else result


def guard(conditions: list, statement: tirx.Stmt) -> tirx.Stmt:
    """`statement`, under those of the conditions that are not always true."""
    condition = _all(conditions)
    return statement if condition is None else tirx.IfThenElse(condition, statement, None)


def guarded_value(conditions: list, value, otherwise):
    """`value`, or `otherwise` where a condition fails."""
    condition = _all(conditions)
    return value if condition is None else tirx.if_then_else(condition, value, otherwise)


def _all(conditions: list):
    """Those that are not always true, together; None if there is none."""
    open_ = [each for each in conditions if not (isinstance(each, tirx.IntImm) and int(each))]
    return reduce(tirx.And, open_) if open_ else None
