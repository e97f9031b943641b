# SPDX-License-Identifier: Apache-2.0
"""The values of many index expressions at many points: what they have in common is worked out once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

import numpy as np
from tvm import ir, tirx

from ..ir.index_map import EVALUATE, is_if_then_else

_MIXED = 2654435761  # Knuth's multiplicative hash


class NoIndex(Exception):
    """An expression is no integer arithmetic over the variables that are known."""


class Indices:
    """Expressions over some variables, each different part of them once, by number.

    An unrolled loop has as many index expressions as accesses, which differ in a constant or two. Where an index is
    read from memory (a gather) any element is as likely as another.

    Parameters
    ----------
    vars_ : iterable of tirx.Var
        The variables; their numbers are 0, 1, ...
    """

    def __init__(self, vars_: Iterable):
        self.vars = list(vars_)
        self.parts: list[tuple] = [(None, var) for var in self.vars]
        self._numbers: dict[tuple, int] = {}
        # By address: comparing two variables takes longer, and so does a walk over what was walked over.
        self._seen = {hash(var): (number, var) for number, var in enumerate(self.vars)}

    def number(self, expr) -> int:
        """The number of an expression.

        Raises
        ------
        NoIndex
            If it contains anything but integer arithmetic, comparisons, selects and loads.
        """
        if isinstance(expr, int):
            return self.constant(expr)
        known = self._seen.get(hash(expr))
        if known is None:
            known = self._seen[hash(expr)] = self._read(expr), expr  # kept, so that nobody else gets its address
        return known[0]

    def constant(self, value: int) -> int:
        """The number of an integer."""
        return self._part(None, int(value))

    def part(self, operation: Callable, *operands: int) -> int:
        """The number of what an operation makes of expressions."""
        values = [self.parts[each] for each in operands]
        if all(what is None and isinstance(value, int) for what, value, *_ in values):
            return self._part(None, int(operation(*(value for _, value in values))))
        return self._part(operation, *operands)

    def row_major(self, indices: Sequence[int], shape: Sequence[int]) -> int:
        """The number of a position in a tensor of `shape`, from the numbers of its indices."""
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
        kind = type(expr)  # no `isinstance`: asking what TVM's classes are not takes as long
        if kind in EVALUATE:
            return self.part(EVALUATE[kind], self.number(expr.a), self.number(expr.b))
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
    """What expressions come to, by number; each part of them is worked out when it is asked for, and once.

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
