# SPDX-License-Identifier: Apache-2.0
"""The search space of a kernel that several rules can schedule: a gene selects the rule, each with its own space.

Genes of the other rules keep their default values, so that no kernel has two genomes, and no gene without effect is
varied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from .genetic import Gene, Genome, Space, Value, category


@dataclass(frozen=True)
class OneRule:
    """A constraint: only genes of the selected rule may differ from the defaults."""

    names: tuple[str, ...]
    owners: Mapping[str, Value]
    choices: Mapping[str, Value]
    gene: str

    def allows(self, values: Mapping[str, Value]) -> bool:
        """Whether at most one rule has other values than its defaults, and it is the selected rule if there is one."""
        moved = {owner for name, owner in self.owners.items() if name in values and values[name] != self.choices[name]}
        return moved <= {values[self.gene]} if self.gene in values else len(moved) <= 1


@dataclass(frozen=True)
class RuleSpace(Space):
    """The union of the spaces of several rules.

    Attributes
    ----------
    gene : str
        Name of the gene that selects the rule; its values are the keys of `parts`.
    parts : dict
        Value -> the space of this rule.
    choices : dict
        Default value of each gene of all parts.
    """

    gene: str = ""
    parts: Mapping[Value, Space] = field(default_factory=dict)
    choices: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, gene: str, parts: Mapping[Value, Space], choices: Mapping[str, Value], family: str) -> RuleSpace:
        """Return the space whose gene `gene` selects one of `parts`.

        Raises
        ------
        ValueError
            If two parts have genes of the same name.
        """
        owners = {each.name: value for value, part in parts.items() for each in part.genes}
        genes: list[Gene] = [category(gene, parts), *(each for part in parts.values() for each in part.genes)]
        if len(genes) != 1 + len(owners):
            raise ValueError(f"rules {', '.join(map(str, parts))} have genes of the same name.")
        one = OneRule((gene, *owners), owners, choices, gene)
        constraints = (one, *(constraint for part in parts.values() for constraint in part.constraints))
        facts = {name: value for part in parts.values() for name, value in part.facts.items()}
        return cls(tuple(genes), constraints, family, facts, gene, parts, choices)

    def all(self) -> Iterator[Genome]:
        """Yield every genome once, rule by rule."""
        return (self._whole(value, genome) for value, part in self.parts.items() for genome in part.all())

    def random(self, rng: np.random.Generator) -> Genome:
        """Return a genome of a random rule, all rules being equally likely."""
        value = self._any(rng, list(self.parts))
        return self._whole(value, self.parts[value].random(rng))

    def repair(self, wish: Mapping[str, Value], rng: np.random.Generator) -> Genome:
        """Return the genome nearest to a wish, of the wished rule, or of a random one if it names none."""
        value = wish[self.gene] if wish.get(self.gene) in self.parts else self._any(rng, list(self.parts))
        return self._whole(value, self.parts[value].repair(self._own(value, wish), rng))

    def mutate(self, genome: Mapping[str, Value], rng: np.random.Generator, rate: float) -> Genome:
        """Return a mutated genome: of the same rule, or of another rule with the probability of one gene's change."""
        value = genome[self.gene]
        part = self.parts[value]
        if rng.random() * (1 + len(part.genes)) < 1:
            other = self._any(rng, [each for each in self.parts if each != value])
            return self._whole(other, self.parts[other].mutate(self._own(other, genome), rng, rate))
        return self._whole(value, part.mutate(self._own(value, genome), rng, rate))

    def cross(self, one: Mapping[str, Value], other: Mapping[str, Value], rng: np.random.Generator) -> Genome:
        """Return a crossover with the rule of one parent; the other parent's genes of that rule may be its defaults."""
        values = [parent[self.gene] for parent in (one, other) if parent.get(self.gene) in self.parts]
        value = self._any(rng, values or list(self.parts))
        return self._whole(value, self.parts[value].cross(self._own(value, one), self._own(value, other), rng))

    def _own(self, value: Value, genome: Mapping[str, Value]) -> dict[str, Value]:
        return {gene.name: genome[gene.name] for gene in self.parts[value].genes if gene.name in genome}

    def _whole(self, value: Value, genome: Mapping[str, Value]) -> Genome:
        whole = {**self.choices, **genome, self.gene: value}
        return Genome({name: whole[name] for name in sorted(whole)})

    @staticmethod
    def _any(rng: np.random.Generator, values: list[Value]) -> Value:
        return values[rng.integers(len(values))]
