# SPDX-License-Identifier: Apache-2.0
"""Matching of terms against an `AlgebraGraph`, modulo the associative and commutative laws of ``+`` and ``*``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from .algebra import AlgebraGraph, AlgebraNode
from .terms import CHAINS, Refused, Term, TermFacts, combine, result_facts

# Matching modulo both laws is NP-complete (DNNFusion, section 4.2). Longer chains are therefore matched in windows of
# `CHAIN` operands, and `MATCHES` limits the matches of one rule at one place.
CHAIN = 8
MATCHES = 32


@dataclass(frozen=True)
class Match:
    """The values that the variables of a pattern stand for.

    Attributes
    ----------
    bound : dict
        Variable -> node, or a term over nodes (several factors of a longer product).
    attrs : object
        Attributes of the reduction or other operator with attributes, the same for the whole pattern.
    rest : tuple of Node
        Further summands or factors of the chain at the root.
    """

    bound: dict[str, Any] = field(default_factory=dict)
    attrs: Any = None
    rest: tuple[AlgebraNode, ...] = ()


def chain(root: AlgebraNode) -> list[AlgebraNode]:
    """Return the summands of a sum, or factors of a product, through operators without other readers, left to right."""
    parts, changed = [root], True
    while changed and len(parts) < CHAIN:
        changed = False
        for i, part in enumerate(parts):
            inner = part is not root and (part.pinned or len(part.readers) != 1)
            if part.op == root.op and not inner:
                parts[i : i + 1] = part.args
                changed = True
                break
    return parts


def matches(graph: AlgebraGraph, pattern: Any, root: AlgebraNode) -> Iterator[Match]:
    """Yield the matches of `pattern` at `root`, at most `MATCHES`."""
    if root.op != pattern.op:
        return iter(())
    if root.op not in CHAINS:
        return islice(_match(graph, pattern, root, Match()), MATCHES)
    found = _in_chain(graph, pattern, chain(root), Match(), whole=False)
    # ``a * b`` of two different variables matches in every order, always with the same result.
    any_order = all(isinstance(arg, str) for arg in pattern.args) and len(set(pattern.args)) == len(pattern.args)
    return islice(found, 1 if any_order else MATCHES)


def _match(graph: AlgebraGraph, pattern: Any, value: Any, so_far: Match) -> Iterator[Match]:
    if isinstance(pattern, str):
        yield from _bind(graph, pattern, value, so_far)
    elif not isinstance(value, AlgebraNode):
        return
    elif not isinstance(pattern, Term):
        if graph.filled_with(value, pattern):
            yield so_far
    elif value.op == pattern.op:
        if value.attrs is not None:
            if so_far.attrs not in (None, value.attrs):
                return
            so_far = Match(so_far.bound, value.attrs, so_far.rest)
        if value.op in CHAINS:
            yield from _in_chain(graph, pattern, chain(value), so_far, whole=True)
        else:
            yield from _in_order(graph, pattern.args, value.args, so_far)


def _in_order(graph: AlgebraGraph, patterns: tuple, values: tuple, so_far: Match) -> Iterator[Match]:
    if not patterns:
        yield so_far
        return
    for match in _match(graph, patterns[0], values[0], so_far):
        yield from _in_order(graph, patterns[1:], values[1:], match)


def _in_chain(
    graph: AlgebraGraph, pattern: Term, parts: list[AlgebraNode], so_far: Match, whole: bool
) -> Iterator[Match]:
    """Match the operands of a chain in any order; those left become the last variable if `whole`, else the rest."""
    wanted = _operands(pattern, pattern.op)
    # The most specific operands come first: terms, then bound variables, then free ones.
    wanted.sort(key=lambda each: isinstance(each, str) + (isinstance(each, str) and each not in so_far.bound))
    yield from _assign(graph, pattern.op, wanted, parts, so_far, whole)


def _assign(graph: AlgebraGraph, op: str, wanted: list, parts: list, so_far: Match, whole: bool) -> Iterator[Match]:
    if not wanted:
        if not (whole and parts):
            yield so_far if whole else Match(so_far.bound, so_far.attrs, tuple(parts))
        return
    if len(wanted) > len(parts):
        return
    first, later = wanted[0], wanted[1:]
    if whole and not later and len(parts) > 1:
        if isinstance(first, str):
            everything = _reuse(graph, combine(op, parts, facts_of), None)
            yield from _bind(graph, first, everything, so_far)
        return
    tried: set[int] = set()
    for i, part in enumerate(parts):
        if part.number in tried:
            continue
        tried.add(part.number)
        for match in _match(graph, first, part, so_far):
            yield from _assign(graph, op, later, parts[:i] + parts[i + 1 :], match, whole)


def _bind(graph: AlgebraGraph, name: str, value: Any, so_far: Match) -> Iterator[Match]:
    if name not in so_far.bound:
        yield Match({**so_far.bound, name: value}, so_far.attrs, so_far.rest)
    elif same(so_far.bound[name], value):
        yield so_far


def _operands(term: Any, op: str) -> list:
    if isinstance(term, Term) and term.op == op:
        return [each for arg in term.args for each in _operands(arg, op)]
    return [term]


def same(left: Any, right: Any) -> bool:
    """Whether two terms over nodes are known to have one value."""
    if isinstance(left, AlgebraNode) and isinstance(right, AlgebraNode):
        return left.number == right.number
    if isinstance(left, Term) and isinstance(right, Term) and left.op == right.op:
        mine, other = _operands(left, left.op), _operands(right, right.op)
        if all(isinstance(each, AlgebraNode) for each in mine + other):
            return sorted(each.number for each in mine) == sorted(each.number for each in other)
    return False


def facts_of(term: Any, attrs: Any = None, dtype: str = "float32") -> TermFacts:
    """Return the facts of a term over nodes and numbers; numbers are scalars of `dtype`.

    Raises
    ------
    Refused
        If the term has no meaning over these tensors.
    """
    if isinstance(term, AlgebraNode):
        return term.facts
    if not isinstance(term, Term):
        return TermFacts((), dtype, True)
    return result_facts(term.op, [facts_of(arg, attrs, dtype) for arg in term.args], attrs)


def instantiate(graph: AlgebraGraph, template: Any, match: Match, root: AlgebraNode) -> Any:
    """Return the replacement over nodes, joined with the rest of the chain in the cheapest order.

    Raises
    ------
    Refused
        As `facts_of`; also if the replacement equals the present term.
    """

    def facts(term):
        return facts_of(term, match.attrs, root.facts.dtype)

    def rebuild(term):
        if isinstance(term, str):
            return match.bound[term]
        if not isinstance(term, Term):
            return term
        args = tuple(map(rebuild, term.args))
        if term.op not in CHAINS:
            return Term(term.op, args)
        return combine(term.op, _operands(Term(term.op, args), term.op), facts)

    new = rebuild(template)
    if match.rest:
        parts = list(match.rest)
        place = next((i for i, (a, b) in enumerate(zip(chain(root), parts)) if a is not b), len(parts))
        parts[place:place] = _operands(new, root.op)
        new = combine(root.op, parts, facts)
    new = _reuse(graph, new, match.attrs)
    if new is root:
        raise Refused
    return new


def _reuse(graph: AlgebraGraph, term: Any, attrs: Any) -> Any:
    """Return the term with a node in the place of each subterm that the graph already computes."""
    if not isinstance(term, Term):
        return term
    args = tuple(_reuse(graph, arg, attrs) for arg in term.args)
    if all(isinstance(arg, AlgebraNode) for arg in args):
        found = graph.find(term.op, args, attrs)
        if found is not None:
            return found
    return Term(term.op, args)
