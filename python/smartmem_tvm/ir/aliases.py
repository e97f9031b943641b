# SPDX-License-Identifier: Apache-2.0
"""Aliases in a Relax function: the allocated tensors that a variable stands for, directly or through tuples."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from .index_map import variables


class Aliases:
    """Follows tensors through bindings that compute nothing.

    A tensor may be anything but a tuple.
    """

    def __init__(self):
        self._known: dict[relax.Var, Any] = {}  # variable -> a tensor, or a tuple of what its fields stand for

    def bind(self, var: relax.Var, stands_for: Any) -> None:
        """Let a variable stand for a tensor, for a tuple of tensors, or for None (unknown)."""
        self._known[var] = stands_for

    def follow(self, var: relax.Var, value: relax.Expr) -> bool:
        """Record the alias that a binding makes if it computes nothing; return whether it computes nothing."""
        if not isinstance(value, (ir.Var, relax.Tuple, ir.TupleGetItem)):
            return False
        self.bind(var, self._of(value))
        return True

    def _of(self, value: relax.Expr) -> Any:
        if isinstance(value, relax.Tuple):
            return tuple(self._of(field) for field in value.fields)
        if isinstance(value, ir.TupleGetItem):
            whole = self._of(value.tuple_value)
            return whole[value.index] if isinstance(whole, tuple) else whole
        return self._known.get(value) if isinstance(value, ir.Var) else None

    def used(self, value: relax.Expr) -> list:
        """Return the tensors that an expression mentions, each once."""
        if isinstance(value, (relax.Tuple, ir.TupleGetItem)):
            return _leaves(self._of(value), [])
        found: list = []
        for var in variables(value):
            _leaves(self._known.get(var), found)
        return found


def _leaves(stands_for: Any, found: list) -> list:
    if isinstance(stands_for, tuple):
        for each in stands_for:
            _leaves(each, found)
    elif stands_for is not None and not any(stands_for is each for each in found):
        found.append(stands_for)
    return found
