# SPDX-License-Identifier: Apache-2.0
"""The loads in an expression, in the order of evaluation, with the conditions under which they happen."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import ir

from .index_map import is_if_then_else


def guarded_loads(expr, guards: tuple) -> Iterator[tuple]:
    """The loads in an expression with the conditions under which they happen, in the order of evaluation."""
    if isinstance(expr, ir.TensorLoad):
        for index in expr.indices:
            yield from guarded_loads(index, guards)
        yield expr, guards
    elif is_if_then_else(expr):
        condition, yes, no = expr.args
        yield from guarded_loads(condition, guards)
        yield from guarded_loads(yes, (*guards, (condition, True)))
        yield from guarded_loads(no, (*guards, (condition, False)))
    else:
        for part in _parts(expr):
            yield from guarded_loads(part, guards)


def _parts(expr) -> Iterator:
    for name in ("a", "b", "condition", "true_value", "false_value", "value", "base", "args", "vectors"):
        part = getattr(expr, name, None)
        if isinstance(part, ir.Expr):
            yield part
        elif part is not None and name in ("args", "vectors"):
            yield from (each for each in part if isinstance(each, ir.Expr))
