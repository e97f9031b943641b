# SPDX-License-Identifier: Apache-2.0
"""Genomes, genes with finitely many values, and constraints between genes.

``Divides(56, ("rows", "inner"))`` means rows x inner x rest = 56, and ``AtMost(16, ("rows", "inner"))`` means that rows
x inner values fit in 16 registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

Value = int | str | bool


class Genome(Mapping[str, Value]):
    """Values by the names of genes; immutable, so that a genome can be a key.

    Parameters
    ----------
    values : mapping of str to int, str or bool
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Value]):
        self._values = dict(values)
        self._hash = hash(frozenset(self._values.items()))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Genome) and self._values == other._values

    def __repr__(self) -> str:
        return "Genome(" + ", ".join(f"{name}={value!r}" for name, value in self.items()) + ")"


@dataclass(frozen=True)
class Gene:
    """One parameter.

    Attributes
    ----------
    name : str
    options : tuple of int, str or bool
        Its distinct values.
    ordered : bool
        Whether the values are numbers whose neighbours behave alike; otherwise all values are equally far apart.

    Raises
    ------
    ValueError
        If there are no options, or one is repeated.
    """

    name: str
    options: tuple[Value, ...]
    ordered: bool

    def __post_init__(self):
        if not self.options or len(set(self.options)) < len(self.options):
            raise ValueError(f"gene {self.name} needs options, each once, and has {self.options}.")

    def distance(self, one: Value, other: Value) -> float:
        """Return the distance of two values, by their ratio if ordered; the values need not be options of this gene."""
        if not self.ordered:
            return float(one != other)
        return abs(math.log2((1 + one) / (1 + other)))


def integer(name: str, options) -> Gene:
    """Return a gene whose values are numbers of at least 0, in ascending order."""
    return Gene(name, tuple(sorted(set(options))), True)


def category(name: str, options) -> Gene:
    """Return a gene whose values have no order."""
    return Gene(name, tuple(options), False)


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a positive number, in ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


class Constraint(Protocol):
    """A condition on some genes.

    Attributes
    ----------
    names : tuple of str
        The genes of the condition.
    """

    names: tuple[str, ...]

    def allows(self, values: Mapping[str, Value]) -> bool:
        """Whether the condition holds, or, if some genes have no value yet, may still hold."""


@dataclass(frozen=True)
class Divides:
    """The product of some genes divides an extent; the quotient is the size of the outermost loop."""

    extent: int
    names: tuple[str, ...]

    def allows(self, values: Mapping[str, Value]) -> bool:
        """Whether the product so far divides the extent."""
        return self.extent % _product(self.names, values) == 0


@dataclass(frozen=True)
class AtMost:
    """The product of some positive genes does not exceed a limit."""

    limit: int
    names: tuple[str, ...]

    def allows(self, values: Mapping[str, Value]) -> bool:
        """Whether the product so far is within the limit."""
        return _product(self.names, values) <= self.limit


@dataclass(frozen=True)
class Requires:
    """Any other condition.

    Attributes
    ----------
    test : callable
        Takes the values of the genes in the order of `names`.
    """

    names: tuple[str, ...]
    test: Callable[..., bool]

    def allows(self, values: Mapping[str, Value]) -> bool:
        """Return the result of the test if all its genes have values, else True."""
        if any(name not in values for name in self.names):
            return True
        return bool(self.test(*(values[name] for name in self.names)))


def _product(names: tuple[str, ...], values: Mapping[str, Value]) -> int:
    return math.prod(values[name] for name in names if name in values)
