# SPDX-License-Identifier: Apache-2.0
"""One expression at many places, as in the body of an unrolled loop nest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, tirx

from ..._tvm import mapped
from ...ir.index_map import EVALUATE, is_if_then_else, variables
from .nest import Scope

Sum = dict[int, int]
"""A linear combination of variables: number of a variable -> factor."""
_SIGNS = {tirx.Add: 1, tirx.Sub: -1}


class Alike:
    """A table that maps equal expressions to the first of them; several `Instances` of a kernel share it."""

    def __init__(self):
        self._seen: dict[int, list] = {}
        self._made: dict[tuple, object] = {}

    def first(self, expr):
        """Return the first expression seen that is equal to `expr`."""
        alike = self._seen.setdefault(tvm_ffi.structural_hash(expr), [])
        for other in alike:
            if tvm_ffi.structural_equal(expr, other):
                return other
        alike.append(expr)
        return expr

    def made(self, of: Hashable, parts: Sequence, make: Callable):
        """Return ``make(*parts)``, made once: equal `parts` are the same object, so their ids are the key."""
        known = (of, *map(id, parts))
        if known not in self._made:
            self._made[known] = make(*parts)
        return self._made[known]


@dataclass
class _Piece:
    """An expression, the sums (`_sums`) and the numbers of the parts in it, and its values so far (`known`).

    `same` is the number of a part if the expression is that part and nothing else; `at` are the numbers of the sums.
    """

    expr: object
    sums: list[tuple]
    parts: list[int]
    finish: Callable | None
    same: int | None
    at: list[int] = field(default_factory=list)
    known: dict = field(default_factory=dict)


@dataclass
class _Part:
    """A load or a choice: `make` builds it from its pieces, and `name` stands for it in the expression around it.

    Two parts with the same `of` are equal if their pieces are.
    """

    name: tirx.Var
    of: Hashable
    whole: _Piece
    pieces: list[_Piece]
    make: Callable


class Instances:
    """``scope.simplify(substitute(expr, where))`` for places that differ in some variables only.

    An index or a condition mostly depends on one or two of these variables, in a window on the sum of two. It is
    simplified once for all places at which these have the same values. Equal results are the same object.

    Parameters
    ----------
    expr : tirx.Expr
    vars_ : sequence of tirx.Var
        The variables that differ.
    alike : Alike, optional
        Shared with other `Instances`, so that equal results of all are the same object.
    """

    def __init__(self, scope: Scope, expr, vars_: Sequence, alike: Alike | None = None):
        self.scope, self.alike = scope, alike or Alike()
        self.parts: list[_Part] = []  # inner ones before outer ones
        self._numbers = {hash(var): number for number, var in enumerate(vars_)}
        self._names: dict = {}
        self._known: dict[tuple, object] = {}
        self.rest = self._piece(mapped(expr, (ir.TensorLoad, self._load), (ir.Call, self._choice)))
        pieces = [self.rest, *(piece for part in self.parts for piece in (part.whole, *part.pieces))]
        self._sums = list(dict.fromkeys(each for piece in pieces for each in piece.sums))
        for piece in pieces:
            piece.at = [self._sums.index(each) for each in piece.sums]

    def at(self, key: Sequence, where: Callable[[], Mapping]):
        """Return the expression at one place.

        Parameters
        ----------
        key : sequence of int
            The offset of each variable from its value at the first place, whose key is all zeros.
        where : callable
            Returns the values of all variables; called only if they are needed.
        """
        sums = tuple([sum([times * key[n] for n, times in each]) for each in self._sums])
        found = self._known.get(sums)
        if found is None:
            found = self._known[sums] = self._made(sums, where)
        return found

    def _made(self, sums: Sequence[int], where: Callable[[], Mapping]):
        made: list = []
        places: dict = {}  # by hash, as comparing two variables takes longer

        def value(piece: _Piece):
            if piece.same is not None:
                return made[piece.same]
            known = (*[sums[n] for n in piece.at], *[id(made[n]) for n in piece.parts])
            found = piece.known.get(known)
            if found is None:
                if not places:
                    places.update((hash(var), each) for var, each in where().items())
                places.update((hash(self.parts[n].name), made[n]) for n in piece.parts)
                found = mapped(piece.expr, (ir.Var, lambda var: places.get(hash(var), var)))
                found = self.alike.first(found if piece.finish is None else piece.finish(found))
                piece.known[known] = found
            return found

        for part in self.parts:
            try:
                made.append(self.alike.made(part.of, [value(piece) for piece in part.pieces], part.make))
            except (RuntimeError, TypeError):  # as `rewrite_accesses` does
                made.append(value(part.whole))
        return value(self.rest)

    def _piece(self, expr, finish: Callable | None = None) -> _Piece:
        sums = [tuple(each.items()) for each in _sums(expr, self._numbers)[1] if each]
        parts = [self._names[var] for var in variables(expr) if var in self._names]
        same = parts[0] if parts and finish is None and isinstance(expr, ir.Var) else None
        return _Piece(expr, list(dict.fromkeys(sums)), parts, finish, same)

    def _part(self, node, of: Hashable, pieces: list[_Piece], make: Callable) -> tirx.Var:
        name = tirx.Var("part", node.ty)
        self._names[name] = len(self.parts)
        self.parts.append(_Part(name, of, self._piece(node), pieces, make))
        return name

    def _load(self, load: ir.TensorLoad) -> tirx.Var:
        source = load.source
        indices = [self._piece(each, self.scope.index) for each in load.indices]
        return self._part(load, hash(source), indices, lambda *indices: tirx.BufferLoad(source, indices))

    def _choice(self, call: ir.Call):
        if not is_if_then_else(call):
            return call
        condition, *values = call.args
        pieces = [self._piece(condition, self.scope.analyzer.simplify), *map(self._piece, values)]
        return self._part(call, "choice", pieces, _chosen)


def _sums(expr, numbers: Mapping[int, int]) -> tuple[Sum | None, list[Sum]]:
    """Return an expression as a linear combination, None if it is none, and the combinations that it depends on.

    Parameters
    ----------
    numbers : mapping
        Hash of a variable -> its number.
    """
    kind = type(expr)
    if kind is tirx.IntImm or isinstance(expr, ir.Var):
        number = numbers.get(hash(expr))
        own = {} if number is None else {number: 1}
        return own, [own]
    if kind not in EVALUATE:
        parts = expr.args if isinstance(expr, ir.Call) else variables(expr)
        return None, [each for part in parts for each in _sums(part, numbers)[1]]
    (first, of_first), (second, of_second) = (_sums(part, numbers) for part in (expr.a, expr.b))
    own = None
    if first is not None and second is not None:
        if kind in _SIGNS:
            own = {n: first.get(n, 0) + _SIGNS[kind] * second.get(n, 0) for n in first | second}
        elif kind is tirx.Mul and type(expr.b) is tirx.IntImm:
            own = {n: times * int(expr.b) for n, times in first.items()}
    return own, [*of_first, *of_second] if own is None else [own]


def _chosen(condition, yes, no):
    if isinstance(condition, tirx.IntImm):
        return yes if int(condition) else no
    return tirx.if_then_else(condition, yes, no)
