# SPDX-License-Identifier: Apache-2.0
"""Tell what is padding in a stage that pads a picture."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from tvm import ir, tirx

from ...ir.index_map import NotAnIndex, evaluate, is_if_then_else, variables
from ...ir.kernel import Stage
from ...ir.walk import loads


def padding_of(maker: Stage, moved: Collection[int]) -> tuple[object, object, dict[int, tuple[int, int]]]:
    """The value of what is no padding, that of the padding, and the range of each dimension where there is none.

    Of a picture that is padded in another dimension than those in `moved`, in which a window moves, all is value: who
    copies lines and columns looks at no other range, as where a window of one place steps over what is padded.
    """
    value, inside = maker.body.value, {}
    if not is_if_then_else(value) or loads(value.args[2]) or variables(value.args[2]):
        return value, None, {}
    dims = {at: dim for dim, at in enumerate(maker.body.indices) if isinstance(at, ir.Var)}
    for condition in _conjuncts(value.args[0]):
        used = variables(condition)
        found = _range(condition, used[0], maker.extents[used[0]]) if len(used) == 1 and used[0] in dims else None
        if found is None:
            return value, None, {}
        low, high = inside.get(dims[used[0]], found)
        inside[dims[used[0]]] = (max(low, found[0]), min(high, found[1]))
    return (value.args[1], value.args[2], inside) if set(inside) <= set(moved) else (value, None, {})


def _conjuncts(condition) -> list:
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


def _range(condition, var, extent: int) -> tuple[int, int] | None:
    """The one range of `var` in which a condition holds."""
    try:
        holds = np.flatnonzero(evaluate(condition, {var: np.arange(extent)}))
    except NotAnIndex:
        return None
    if len(holds) == 0 or holds[-1] - holds[0] + 1 != len(holds):
        return None
    return int(holds[0]), int(holds[-1]) + 1
