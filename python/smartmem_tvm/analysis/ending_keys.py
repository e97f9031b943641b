# SPDX-License-Identifier: Apache-2.0
"""Sums over positions that may end at the length: what lies behind it is hidden, and nothing else runs along there.

    s[l, k] = ... if k < n else -inf;  m[l] = max_k s[l, k];  e[l, k] = exp(s[l, k] - m[l])
    o[l, d] = sum_k e[l, k] * v[k, d]

No stage needs a key ``k`` from ``n`` on: the maximum is that of another one, and the terms of the sum are zero.
"""

from __future__ import annotations

from tvm import tirx

from ..ir.axes import axes_of, without_unit_iterators
from ..ir.kernel import Kernel, Opaque, Stage
from ..ir.mask_positions import LOWEST, ZERO, Extent
from .row_chain import summand
from .unread_positions import UnreadPositions, state_behind


def ending_keys(kernel: Kernel, length, capacity: int, values: dict) -> tuple[int, Extent] | None:
    """Return the iterator of the last sum of a kernel that may end at the length, and where it ends; else None.

    Parameters
    ----------
    length : buffer
        The input with the length.
    values : dict
        Input -> its axes that are `ZERO` or `LOWEST` behind the length, as of `UnreadPositions.computed`.

    Returns
    -------
    tuple or None
        The place among the iterators of `last_sum`, for `along`; only lengths that windows did not make shorter.
    """
    kernel = without_unit_iterators(kernel)
    last, whole = last_sum(kernel), UnreadPositions(kernel, length, capacity)
    if last is None:
        return None
    whole.computed(values)
    for number, var in enumerate(last.reduction):
        for extent in whole.extents(last.extents[var]):
            if extent.each == 1 and _may_end(kernel, whole, number, extent):
                return number, extent
    return None


def last_sum(kernel: Kernel) -> Stage | None:
    """Return the last stage that reduces; None if there is none."""
    return next((stage for stage in reversed(kernel.stages) if stage.reduction), None)


def along(kernel: Kernel, axes: dict, number: int) -> dict[Stage, tirx.Var]:
    """Return the iterator of each stage that runs along one of the last sum.

    Parameters
    ----------
    kernel : Kernel
        Without iterators of extent 1.
    axes : dict
        As of `ir.axes.axes_of`.
    """
    last = last_sum(kernel)
    axis = axes[last][last.reduction[number]]
    return {stage: var for stage, each in axes.items() for var, mine in each.items() if mine == axis}


def _may_end(kernel: Kernel, whole: UnreadPositions, number: int, extent: Extent) -> bool:
    try:
        keys = along(kernel, axes_of(kernel)[0], number)
    except Opaque:
        return False
    for stage, key in keys.items():
        if any(key.same_as(each) for each in stage.reduction):
            value = stage.body.value
            if isinstance(value, tirx.Max):
                term = value.b if _reads(value.a, stage.body.buffer) else value.a
                wanted = LOWEST
            else:
                term, wanted = summand(stage), ZERO
            if term is None or state_behind(whole, stage, key, extent, term) != wanted:
                return False
        elif any(stage.body.buffer.same_as(each) for each in kernel.outputs):
            return False
    return True


def _reads(expr, buffer) -> bool:
    return getattr(expr, "source", None) is not None and expr.source.same_as(buffer)
