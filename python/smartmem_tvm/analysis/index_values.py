# SPDX-License-Identifier: Apache-2.0
"""Evaluate many index expressions at many points, each common subexpression once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

import numpy as np
from tvm import ir, tirx

from ..ir.index_map import EVALUATE, is_if_then_else

_MIXED = 2654435761  # Knuth's multiplicative hash
_OPERATORS = {**EVALUATE, tirx.Mod: np.fmod}  # with the sign of the dividend: ids that may count from the end


class NoIndex(Exception):
    """An expression is no integer arithmetic over the known variables."""


class Indices:
    """A numbered table of the distinct subexpressions of expressions over some variables.

    An unrolled loop has as many index expressions as accesses, which differ in a constant or two. An index that is
    read from memory (a gather) is modelled as pseudo-random, all elements being equally likely.

    Parameters
    ----------
    vars_ : iterable of tirx.Var
        The variables; their numbers are 0, 1, ...
    """

    def __init__(self, vars_: Iterable):
        self.vars = list(vars_)
        self.parts: list[tuple] = [(None, var) for var in self.vars]
        self._numbers: dict[tuple, int] = {}
        # By address: this saves the comparison of variables, and a second walk over the same expression.
        self._seen = {hash(var): (number, var) for number, var in enumerate(self.vars)}

    def number(self, expr) -> int:
        """Return the number of an expression.

        Raises
        ------
        NoIndex
            If it contains anything but integer arithmetic, comparisons, selects and loads.
        """
        if isinstance(expr, int):
            return self.constant(expr)
        known = self._seen.get(hash(expr))
        if known is None:
            known = self._seen[hash(expr)] = self._read(expr), expr  # kept, so that its address is not reused
        return known[0]

    def constant(self, value: int) -> int:
        """Return the number of an integer constant."""
        return self._part(None, int(value))

    def part(self, operation: Callable, *operands: int) -> int:
        """Return the number of an operation applied to numbered expressions; constants are folded."""
        values = [self.parts[each] for each in operands]
        if all(what is None and isinstance(value, int) for what, value, *_ in values):
            return self._part(None, int(operation(*(value for _, value in values))))
        return self._part(operation, *operands)

    def row_major(self, indices: Sequence[int], shape: Sequence[int]) -> int:
        """Return the number of the row-major position in a tensor of `shape`, given the numbers of its indices."""
        flat, *rest = indices or [self.constant(0)]
        for at, extent in zip(rest, shape[1:], strict=True):
            flat = self.part(np.add, self.part(np.multiply, flat, self.constant(extent)), at)
        return flat

    def _part(self, *key) -> int:
        number = self._numbers.setdefault(key, len(self.parts))
        if number == len(self.parts):
            self.parts.append(key)
        return number

    def _read(self, expr) -> int:
        kind = type(expr)  # no `isinstance`: for TVM's classes its answer "no" is slow
        if kind in _OPERATORS:
            return self.part(_OPERATORS[kind], self.number(expr.a), self.number(expr.b))
        if kind is tirx.IntImm:
            return self.constant(int(expr))
        if kind is tirx.Cast:
            return self.number(expr.value)
        if kind is tirx.Not:
            return self.part(np.logical_not, self.number(expr.a))
        if kind is tirx.Select:
            return self.part(np.where, *map(self.number, (expr.condition, expr.true_value, expr.false_value)))
        if is_if_then_else(expr):
            return self.part(np.where, *map(self.number, expr.args))
        if isinstance(expr, ir.TensorLoad):
            shape = [int(n) for n in expr.source.shape]
            where = self.row_major([self.number(index) for index in expr.indices], shape)
            anything = self.part(np.right_shift, self.part(np.multiply, where, self.constant(_MIXED)), self.constant(7))
            return self.part(np.mod, anything, self.constant(prod(shape)))
        raise NoIndex(f"an index is no integer arithmetic: {expr}")


class Values:
    """The values of numbered expressions; each subexpression is evaluated on first use, and once.

    Parameters
    ----------
    indices : Indices
    known : mapping
        Number of a variable -> its values, broadcastable with those of the others.
    """

    def __init__(self, indices: Indices, known: Mapping[int, np.ndarray]):
        self.parts, self.known = indices.parts, dict(known)

    def __getitem__(self, number: int) -> np.ndarray:
        if number not in self.known:
            operation, *operands = self.parts[number]
            if operation is None:
                self.known[number] = np.asarray(*operands)
            else:
                self.known[number] = operation(*(self[each] for each in operands))
        return self.known[number]
