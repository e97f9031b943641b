# SPDX-License-Identifier: Apache-2.0
"""The search space of a kernel that several rules can take: one gene says which, and each rule has a space of its own.

Genes of the other rules stay as these rules would choose, so that no kernel has two genomes, and nothing is varied
that does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from .genetic import Gene, Genome, Space, Value, category


@dataclass(frozen=True)
class OneRule:
    """A constraint: what is not as its rule would choose belongs to the rule that was chosen."""

    names: tuple[str, ...]
    owners: Mapping[str, Value]
    choices: Mapping[str, Value]
    gene: str

    def allows(self, values: Mapping[str, Value]) -> bool:
        """Whether at most one rule has other values, the chosen one if there is one."""
        moved = {owner for name, owner in self.owners.items() if name in values and values[name] != self.choices[name]}
        return moved <= {values[self.gene]} if self.gene in values else len(moved) <= 1


@dataclass(frozen=True)
class RuleSpace(Space):
    """A space made of those of several rules.

    Attributes
    ----------
    gene : str
        Its values are the keys of `parts`.
    parts : dict
        Value -> the space of this rule.
    choices : dict
        The value of each gene of all parts that its rule would choose.
    """

    gene: str = ""
    parts: Mapping[Value, Space] = field(default_factory=dict)
    choices: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, gene: str, parts: Mapping[Value, Space], choices: Mapping[str, Value], family: str) -> RuleSpace:
        """The space whose gene `gene` says which of `parts` counts.

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
        """Every genome once, rule by rule."""
        return (self._whole(value, genome) for value, part in self.parts.items() for genome in part.all())

    def random(self, rng: np.random.Generator) -> Genome:
        """A genome of any rule, each as likely as the others."""
        value = self._any(rng, list(self.parts))
        return self._whole(value, self.parts[value].random(rng))

    def repair(self, wish: Mapping[str, Value], rng: np.random.Generator) -> Genome:
        """The genome of the rule that is wished for, or else of any, that is nearest to a wish."""
        value = wish[self.gene] if wish.get(self.gene) in self.parts else self._any(rng, list(self.parts))
        return self._whole(value, self.parts[value].repair(self._own(value, wish), rng))

    def mutate(self, genome: Mapping[str, Value], rng: np.random.Generator, rate: float) -> Genome:
        """A genome near another one of its rule or, as often as another gene would change, one of another rule."""
        value = genome[self.gene]
        part = self.parts[value]
        if rng.random() * (1 + len(part.genes)) < 1:
            other = self._any(rng, [each for each in self.parts if each != value])
            return self._whole(other, self.parts[other].mutate(self._own(other, genome), rng, rate))
        return self._whole(value, part.mutate(self._own(value, genome), rng, rate))

    def cross(self, one: Mapping[str, Value], other: Mapping[str, Value], rng: np.random.Generator) -> Genome:
        """A genome of one parent's rule; what the other one has for it came from this rule too, or is its choice."""
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
