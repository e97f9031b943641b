# SPDX-License-Identifier: Apache-2.0
"""Tables of costly values that depend on the innermost iterator alone, so that they are computed once.

    y[i, j] = x[i, floor((j + 0.5) * 0.125 - 0.5)]
    ->
    at[j] = floor((j + 0.5) * 0.125 - 0.5)          once
    y[i, j] = x[i, at[j]]

For example, all lines of a resized picture have the same indices and weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ...ir.index_map import function_name, variables
from ...ir.kernel import Stage, substitute
from ...ir.walk import collect, loads, outermost
from ..core.nest import Scope, scratch, store

_ROUNDING = ("floor", "ceil", "round", "nearbyint", "trunc")
_LEAST = 4  # times that a table must be read. Chosen: one that is read as often as it is written gains nothing
_LEAVES = (ir.Var, tirx.IntImm, tirx.FloatImm, ir.Op)


def tabulated(stage: Stage, inner: Sequence) -> tuple[Stage, list, list[tirx.Stmt]]:
    """Return the stage that reads tables, the tables, and the statements that fill them.

    The stage is returned unchanged if no value is worth a table.

    Parameters
    ----------
    stage : Stage
        A store that does not reduce; no iterator of extent 1.
    inner : sequence of Var
        The iterators of the innermost loop. Only a single one can index a table.
    """
    along = inner[-1] if len(inner) == 1 else None
    value = stage.body.value
    again = [extent for var, extent in stage.extents.items() if not var.same_as(along)]
    if along is None or not _is_dear(value) or max(again, default=1) < _LEAST:
        return stage, [], []
    parts = outermost(value, ir.Expr, lambda node: not isinstance(node, _LEAVES) and _is_of(node, along))
    found = {tvm_ffi.StructuralKey(part): part for part in parts}
    length, scope = stage.extents[along], Scope()
    tables = {key: scratch([length], node.ty.dtype, "table") for key, node in found.items()}

    def look_up(node):
        if isinstance(node, _LEAVES):
            return node
        table = tables.get(tvm_ffi.StructuralKey(node))
        return node if table is None else table[along]

    body = tirx.BufferStore(
        stage.body.buffer, tvm_ffi.structural_map(value, (ir.Expr, look_up)), list(stage.body.indices)
    )
    fills = [
        scope.loop(length, lambda j, n=node, t=tables[key]: store(t, substitute(n, {along: j}), j), "j")
        for key, node in found.items()
    ]
    return replace(stage, body=body), list(tables.values()), fills


def _is_dear(node) -> bool:
    """Whether an expression rounds a number to an integer."""
    casts = collect(node, tirx.Cast)
    rounded = any(str(cast.value.ty.dtype).startswith("float") and "int" in str(cast.ty.dtype) for cast in casts)
    return rounded or any(function_name(call) in _ROUNDING for call in collect(node, ir.Call))


def _is_of(node, along) -> bool:
    used = variables(node)
    return len(used) == 1 and used[0].same_as(along) and not loads(node) and _is_dear(node)
