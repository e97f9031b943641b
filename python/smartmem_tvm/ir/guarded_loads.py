# SPDX-License-Identifier: Apache-2.0
"""The loads in an expression, in the order of evaluation, with the conditions under which they happen."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import ir

from .index_map import LEAVES, is_if_then_else
from .walk import collect_outside

_KINDS = (ir.TensorLoad, ir.Call)


def guarded_loads(expr, guards: tuple) -> Iterator[tuple]:
    """Yield (load, conditions) for each load in an expression, in the order of evaluation."""
    for node in collect_outside(expr, _KINDS, skip=_KINDS):
        if is_if_then_else(node):
            condition, yes, no = node.args[:]
            yield from guarded_loads(condition, guards)
            yield from guarded_loads(yes, (*guards, (condition, True)))
            yield from guarded_loads(no, (*guards, (condition, False)))
            continue
        is_load = isinstance(node, ir.TensorLoad)
        for part in (node.indices if is_load else node.args)[:]:
            if type(part) not in LEAVES:  # most indices
                yield from guarded_loads(part, guards)
        if is_load:
            yield node, guards
