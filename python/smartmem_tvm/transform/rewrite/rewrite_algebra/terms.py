# SPDX-License-Identifier: Apache-2.0
"""Terms of the rewrite rules: their parser, and their shapes and costs over tensors."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....tables.operator_cost import FLOPS

REDUCTIONS = frozenset(("sum", "mean", "prod", "max", "min"))
CHAINS = frozenset(("add", "multiply"))  # the operators that are matched modulo association and commutation
_BINARY = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.LShift: "left_shift",
    ast.MatMult: "matmul",
}
_SPELLED = {"relu": "nn.relu"}
# Elements up to which a constant is folded even if it is larger than its operands.
_SMALL = 1 << 12


class Refused(Exception):
    """A term has no meaning over these tensors."""


class Term(NamedTuple):
    """An operator (Relax's name) applied to terms; leaves are variables (str), numbers, or tensors of a graph."""

    op: str
    args: tuple[Any, ...]


class Reduce(NamedTuple):
    """Attributes of a reduction: operand's shape, axes (ascending, not negative), and whether they stay as ones."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    keepdims: bool


@cache
def parse_term(text: str) -> Any:
    """Read a term: ``a * (b + 1)``, ``recip(a)`` (which is ``1 / a``), ``sum(a << b)``.

    Raises
    ------
    ValueError
        If the text is no term.
    """
    return _term(ast.parse(text, mode="eval").body)


def _term(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=number)):
            return -float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Term("negative", (_term(operand),))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return Term(_BINARY[type(op)], (_term(left), _term(right)))
        case ast.Call(func=ast.Name(id="recip"), args=[operand]):
            return Term("divide", (1.0, _term(operand)))
        case ast.Call(func=ast.Name(id=name), args=operands):
            return Term(_SPELLED.get(name, name), tuple(map(_term, operands)))
    raise ValueError(f"'{ast.unparse(node)}' is no term of a rewrite rule.")


def operators(term: Any) -> frozenset[str]:
    """Return the names of all operators in a term."""
    if not isinstance(term, Term):
        return frozenset()
    return frozenset((term.op,)).union(*map(operators, term.args))


@dataclass(frozen=True)
class TermFacts:
    """Shape and dtype of a value, and whether it is known at compile time."""

    shape: tuple[int, ...]
    dtype: str
    constant: bool = False

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return the size in memory, in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


def result_shape(op: str, shapes: list[tuple[int, ...]], attrs: Any) -> tuple[int, ...]:
    """Return the shape of one operator's result; `attrs` is a `Reduce` for reductions and unused otherwise.

    Raises
    ------
    Refused
        If the shapes do not fit, or a reduction would read another shape than the one its axes were written for.
    """
    if op in REDUCTIONS:
        if not isinstance(attrs, Reduce) or shapes[0] != attrs.shape:
            raise Refused
        kept = ((i, 1 if i in attrs.axes else n) for i, n in enumerate(attrs.shape))
        return tuple(n for i, n in kept if attrs.keepdims or i not in attrs.axes)
    try:
        return _matmul_shape(*shapes) if op == "matmul" else _broadcast(*shapes)
    except ValueError as err:
        raise Refused from err


_broadcast = cache(np.broadcast_shapes)


def _matmul_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise Refused
    return (*_broadcast(left[:-2], right[:-2]), left[-2], right[-1])


class Cost(NamedTuple):
    """The costs that rewriting reduces, the most important first; compared in order, added field by field."""

    flops: int = 0
    bytes: int = 0  # read and written by operators taken alone
    nodes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(self, other)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(a - b for a, b in zip(self, other)))


def operator_cost(op: str, operands: list[TermFacts], result: TermFacts) -> Cost:
    """Return the cost of one operator, from the shapes; zero if it is computed at compile time."""
    if result.constant:
        return Cost()
    flops = FLOPS.get(op, 1) * (operands[0].size if op in REDUCTIONS else result.size)
    if op == "matmul":
        flops *= operands[0].shape[-1]
    return Cost(flops, result.bytes + sum(operand.bytes for operand in operands), 1)


def result_facts(op: str, operands: list[TermFacts], attrs: Any) -> TermFacts:
    """Return the facts of one operator's result; its dtype is that of its operands.

    Raises
    ------
    Refused
        As `result_shape`; if the operands' dtypes differ, or have no such operator; if it would be a constant much
        larger than its operands.
    """
    dtypes = {operand.dtype for operand in operands}
    shape = result_shape(op, [operand.shape for operand in operands], attrs)
    if len(dtypes) != 1 or (op == "negative" and "uint" in next(iter(dtypes))):  # TVM has no negative of unsigned ones
        raise Refused
    constant = all(operand.constant for operand in operands)
    facts = TermFacts(shape, dtypes.pop(), constant)
    if constant and facts.size > max(_SMALL, *(operand.size for operand in operands)):
        raise Refused
    return facts


def combine(op: str, terms: list, facts_of) -> Any:
    """Join terms by ``add`` or ``multiply`` in the cheapest order: small ones first, else in the given order.

    Parameters
    ----------
    op : str
        The operator.
    terms : list
        At least one term.
    facts_of : callable
        Term -> `TermFacts`.
    """
    terms = list(terms)
    while len(terms) > 1:
        pairs = [(i, j) for j in range(len(terms)) for i in range(j)]
        joined = {pair: _join_cost(op, facts_of(terms[pair[0]]), facts_of(terms[pair[1]])) for pair in pairs}
        i, j = min(pairs, key=lambda pair: (joined[pair], pair))
        terms[i] = Term(op, (terms[i], terms[j]))
        del terms[j]
    return terms[0]


def _join_cost(op: str, left: TermFacts, right: TermFacts) -> int:
    try:
        result = result_facts(op, [left, right], None)
    except Refused:
        return 1 << 62
    return 0 if result.constant else result.size
