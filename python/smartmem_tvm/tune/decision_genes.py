# SPDX-License-Identifier: Apache-2.0
"""The genes and constraints of one decision, which `space` fills in kind by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from ..schedule.core.decisions import Decision
from .genetic import AtMost, Constraint, Gene, Requires, Value, category, integer


class Kind:
    """Genes and constraints of one decision; methods take names of fields, which stand for genes."""

    def __init__(self, decision: Decision):
        self.decision, self.facts = decision, decision.facts
        self.genes: dict[str, Gene] = {}
        self.constraints: list[Constraint] = []

    def __getitem__(self, fact: str) -> int:
        return int(self.facts[fact])

    def default(self, field: str) -> Value:
        """Return the value that the rule chose."""
        return self.decision.values[field]

    def number(self, field: str, options: Iterable[int], most: int | None = None) -> None:
        """Add a gene with the options up to `most`, and the default."""
        kept = {n for n in options if most is None or n <= most}
        self.genes[field] = integer(self._name(field), {*kept, self.default(field)})

    def switch(self, field: str) -> None:
        """Add a gene that is on or off."""
        self.genes[field] = category(self._name(field), (False, True))

    def at_most(self, limit: int, *fields: str) -> None:
        """Limit the product of some fields; the default product is always allowed."""
        limit = max(limit, prod(self.default(field) for field in fields))
        self.constraints.append(AtMost(limit, self._names(fields)))

    def requires(self, test: Callable[..., bool], *fields: str) -> None:
        """Add a condition on the values of some fields, in their order."""
        self.constraints.append(Requires(self._names(fields), test))

    def limited_by_rule(self) -> None:
        """Exclude the choices that the rule itself refuses."""
        fields, allows = tuple(self.decision.values), self.decision.allows
        if allows is not None:
            self.requires(lambda *values: allows(dict(zip(fields, values, strict=True))), *fields)

    def all_genes(self) -> list[Gene]:
        """Return one gene for each field, in the order of the choice."""
        values = self.decision.values.items()
        return [self.genes.get(field) or category(self._name(field), (value,)) for field, value in values]

    def _name(self, field: str) -> str:
        return f"{self.decision.name}.{field}"

    def _names(self, fields: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self._name, fields))
