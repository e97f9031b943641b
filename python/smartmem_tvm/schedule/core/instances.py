# SPDX-License-Identifier: Apache-2.0
"""One expression at many places: what loops are made of that are written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, tirx

from ..._tvm import mapped
from ...ir.index_map import is_if_then_else, variables
from ...ir.kernel import substitute
from .nest import Scope


@dataclass
class _Piece:
    """An expression with the variables and parts in it, by number, and what it came to so far."""

    expr: object
    variables: list[int]
    parts: list[int]
    finish: Callable
    known: dict = field(default_factory=dict)


@dataclass
class _Part:
    """A load or a choice: `make` makes it of its pieces, and `name` stands for it in what it is inside of."""

    name: tirx.Var
    whole: _Piece
    pieces: list[_Piece]
    make: Callable
    known: dict = field(default_factory=dict)


class Instances:
    """``scope.simplify(substitute(expr, where))`` for places that differ in some variables only.

    An index of a load or a condition depends on one or two of them, mostly: it is worked out once for all places that
    have these in common. Results that are equal are the same object.

    Parameters
    ----------
    expr : tirx.Expr
    vars_ : sequence of tirx.Var
        The variables that differ.
    """

    def __init__(self, scope: Scope, expr, vars_: Sequence):
        self.scope = scope
        self.parts: list[_Part] = []  # what is inside of another one comes before it
        self._variables = {var: number for number, var in enumerate(vars_)}
        self._names: dict = {}
        self._seen: dict[int, list] = {}
        self.rest = self._piece(mapped(expr, (ir.TensorLoad, self._load), (ir.Call, self._choice)))

    def at(self, key: Sequence, where: Callable[[], Mapping]):
        """The expression at one place.

        Parameters
        ----------
        key : sequence
            For each of the variables something to tell its values apart by.
        where : callable
            Returns the values of all variables, if they are needed.
        """
        made: list = []

        def value(piece: _Piece):
            known = (*(key[n] for n in piece.variables), *(id(made[n]) for n in piece.parts))
            if known not in piece.known:
                parts = {self.parts[n].name: made[n] for n in piece.parts}
                piece.known[known] = self._first(piece.finish(substitute(piece.expr, {**where(), **parts})))
            return piece.known[known]

        def of_pieces(part: _Part):
            values = [value(piece) for piece in part.pieces]
            known = tuple(map(id, values))
            if known not in part.known:
                part.known[known] = self._first(part.make(*values))
            return part.known[known]

        for part in self.parts:
            try:
                made.append(of_pieces(part))
            except (RuntimeError, TypeError):  # as `rewrite_accesses` does
                made.append(value(part.whole))
        return value(self.rest)

    def _first(self, expr):
        """What was the first to be equal to an expression."""
        alike = self._seen.setdefault(tvm_ffi.structural_hash(expr), [])
        for other in alike:
            if tvm_ffi.structural_equal(expr, other):
                return other
        alike.append(expr)
        return expr

    def _piece(self, expr, finish: Callable = lambda expr: expr) -> _Piece:
        found = variables(expr)
        in_turn = [self._variables[var] for var in found if var in self._variables]
        return _Piece(expr, in_turn, [self._names[var] for var in found if var in self._names], finish)

    def _part(self, node, pieces: list[_Piece], make: Callable) -> tirx.Var:
        name = tirx.Var("part", node.ty)
        self._names[name] = len(self.parts)
        self.parts.append(_Part(name, self._piece(node), pieces, make))
        return name

    def _load(self, load: ir.TensorLoad) -> tirx.Var:
        source = load.source
        indices = [self._piece(each, self.scope.index) for each in load.indices]
        return self._part(load, indices, lambda *indices: tirx.BufferLoad(source, indices))

    def _choice(self, call: ir.Call):
        if not is_if_then_else(call):
            return call
        condition, *values = call.args
        pieces = [self._piece(condition, self.scope.analyzer.simplify), *map(self._piece, values)]
        return self._part(call, pieces, _chosen)


def _chosen(condition, yes, no):
    if isinstance(condition, tirx.IntImm):
        return yes if int(condition) else no
    return tirx.if_then_else(condition, yes, no)
