# SPDX-License-Identifier: Apache-2.0
"""A search space: genes, constraints, and methods that construct genomes satisfying all constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np

from .genes import Constraint, Gene, Genome, Value

_STEP = 0.5  # probability that a mutated number moves one option further


class EmptySpace(ValueError):
    """No genome satisfies the constraints of a space."""


@dataclass(frozen=True)
class Space:
    """All genomes for one kernel.

    Attributes
    ----------
    genes : tuple of Gene
    constraints : tuple of Constraint
    family : str
        Kernels of one family have genes of the same names, and can exchange values.
    facts : mapping of str to int
        Sizes of the kernel, by which it differs from others of its family.
    """

    genes: tuple[Gene, ...]
    constraints: tuple[Constraint, ...] = ()
    family: str = ""
    facts: Mapping[str, int] = field(default_factory=dict)

    def holds(self, genome: Mapping[str, Value]) -> bool:
        """Whether a genome belongs to the space."""
        known = set(genome) == set(self._by_name) and all(genome[gene.name] in gene.options for gene in self.genes)
        return known and all(constraint.allows(genome) for constraint in self.constraints)

    def all(self) -> Iterator[Genome]:
        """Yield every genome once, in a fixed order."""
        return self._complete({}, lambda gene: gene.options)

    def size(self, limit: int) -> int:
        """Count the genomes, up to `limit`."""
        return sum(1 for _ in islice(self.all(), limit))

    def random(self, rng: np.random.Generator) -> Genome:
        """Return a random genome, drawn gene by gene, with equal probability for all values that can be completed.

        Raises
        ------
        EmptySpace
            If the space has no genome.
        """
        return self._first(lambda gene: [gene.options[i] for i in rng.permutation(len(gene.options))])

    def repair(self, wish: Mapping[str, Value], rng: np.random.Generator) -> Genome:
        """Return a genome near a wish, chosen gene by gene in their order.

        Parameters
        ----------
        wish : mapping
            Values, which need not be options here: they may be of a kernel of the family with other extents. A gene
            without a wish gets a random value.
        """

        def nearest_first(gene: Gene) -> list[Value]:
            order = rng.permutation(len(gene.options))
            if gene.name not in wish:
                return [gene.options[i] for i in order]
            return sorted((gene.options[i] for i in order), key=lambda v: gene.distance(v, wish[gene.name]))

        return self._first(nearest_first)

    def mutate(self, genome: Mapping[str, Value], rng: np.random.Generator, rate: float) -> Genome:
        """Return a genome near another one: one gene always changes, and each other gene with probability `rate`.

        A number moves along its options, seldom far; a category changes to any other value. The repair may change more
        genes, or undo a change.
        """
        names = [gene.name for gene in self.genes if len(gene.options) > 1]
        if not names:
            return self.repair(genome, rng)
        sure = names[rng.integers(len(names))]
        changed = [name for name in names if name == sure or rng.random() < rate]
        wish = {**genome, **{name: self._moved(self._by_name[name], genome[name], rng) for name in changed}}
        return self._with_first(changed).repair(wish, rng)

    def cross(self, one: Mapping[str, Value], other: Mapping[str, Value], rng: np.random.Generator) -> Genome:
        """Return a crossover of two parents of the family, each gene from either, repaired to the constraints."""
        wish: dict[str, Value] = {}
        for gene in self.genes:
            pair = (one, other) if rng.random() < 0.5 else (other, one)
            value = next((parent[gene.name] for parent in pair if gene.name in parent), None)
            if value is not None:
                wish[gene.name] = value
        return self.repair(wish, rng)

    # -- completion of genomes ---------------------------------------------------------------------------------------

    @cached_property
    def _by_name(self) -> dict[str, Gene]:
        return {gene.name: gene for gene in self.genes}

    @cached_property
    def _about(self) -> dict[str, list[Constraint]]:
        return {gene.name: [c for c in self.constraints if gene.name in c.names] for gene in self.genes}

    def _with_first(self, names: Iterable[str]) -> Space:
        """Return the same space with some genes first, whose wishes then take precedence."""
        chosen = set(names)
        order = sorted(self.genes, key=lambda gene: gene.name not in chosen)
        return Space(tuple(order), self.constraints, self.family, self.facts)

    def _first(self, order: Callable[[Gene], Sequence[Value]]) -> Genome:
        orders = {gene.name: order(gene) for gene in self.genes}
        found = next(self._complete({}, lambda gene: orders[gene.name]), None)
        if found is None:
            names = ", ".join(gene.name for gene in self.genes)
            raise EmptySpace(f"no values of {names} satisfy the constraints of family '{self.family}'.")
        return found

    def _complete(self, values: dict[str, Value], order: Callable[[Gene], Sequence[Value]]) -> Iterator[Genome]:
        """Yield every genome that extends `values`, with the values of each gene in the given order."""
        if len(values) == len(self.genes):
            yield Genome({name: values[name] for name in sorted(values)})
            return
        gene = self.genes[len(values)]
        for value in order(gene):
            extended = {**values, gene.name: value}
            if all(constraint.allows(extended) for constraint in self._about[gene.name]):
                yield from self._complete(extended, order)

    @staticmethod
    def _moved(gene: Gene, value: Value, rng: np.random.Generator) -> Value:
        others = [option for option in gene.options if option != value]
        if not gene.ordered:
            return others[rng.integers(len(others))]
        upwards = [option for option in others if option > value]
        downwards = [option for option in reversed(others) if option < value]
        side = upwards if upwards and (not downwards or rng.random() < 0.5) else downwards
        return side[min(int(rng.geometric(1 - _STEP)) - 1, len(side) - 1)]
