# SPDX-License-Identifier: Apache-2.0
"""The loads in an expression, in the order of evaluation, with the conditions under which they happen."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import ir

from .index_map import is_if_then_else
from .walk import collect_outside

_KINDS = (ir.TensorLoad, ir.Call)


def guarded_loads(expr, guards: tuple) -> Iterator[tuple]:
    """The loads in an expression with the conditions under which they happen, in the order of evaluation."""
    for node in collect_outside(expr, _KINDS, skip=_KINDS):
        if is_if_then_else(node):
            condition, yes, no = node.args
            yield from guarded_loads(condition, guards)
            yield from guarded_loads(yes, (*guards, (condition, True)))
            yield from guarded_loads(no, (*guards, (condition, False)))
            continue
        for part in node.indices if isinstance(node, ir.TensorLoad) else node.args:
            yield from guarded_loads(part, guards)
        if isinstance(node, ir.TensorLoad):
            yield node, guards
