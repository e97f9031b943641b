# SPDX-License-Identifier: Apache-2.0
"""Recognition of the padding in a stage that pads a picture."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from tvm import ir, tirx

from ...ir.index_map import NotAnIndex, evaluate, is_if_then_else, variables
from ...ir.kernel import Stage
from ...ir.walk import loads


def padding_of(maker: Stage, moved: Collection[int]) -> tuple[object, object, dict[int, tuple[int, int]]]:
    """Return the value inside, the value of the padding, and dimension -> range inside.

    If the picture is padded in a dimension that is not in `moved`, the dimensions in which a window moves, the whole
    expression counts as the value inside: code that copies lines and columns checks no other range. This happens where
    a window of one element moves over padding.
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
    """Return the single range of `var` in which a condition holds; None if there is no such range."""
    try:
        holds = np.flatnonzero(evaluate(condition, {var: np.arange(extent)}))
    except NotAnIndex:
        return None
    if len(holds) == 0 or holds[-1] - holds[0] + 1 != len(holds):
        return None
    return int(holds[0]), int(holds[-1]) + 1
