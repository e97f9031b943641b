# SPDX-License-Identifier: Apache-2.0
"""Which allocated tensors the variables of a Relax function stand for: by another name, in tuples, out of them."""

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
        """A variable stands for a tensor, a tuple of such, or None for nothing known."""
        self._known[var] = stands_for

    def follow(self, var: relax.Var, value: relax.Expr) -> bool:
        """Note what a binding says, if it computes nothing; returns whether that is so."""
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
        """The tensors that an expression mentions, each once."""
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
