# SPDX-License-Identifier: Apache-2.0
"""What was found for similar kernels, as a start for a new one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .genes import Genome
from .space import Space


@dataclass(frozen=True)
class Known:
    """The best that is known of a kernel.

    Attributes
    ----------
    family : str
    facts : mapping of str to int
        As those of its `Space`.
    genome : Genome
    """

    family: str
    facts: Mapping[str, int]
    genome: Genome


def nearest(space: Space, known: Iterable[Known], count: int) -> list[Genome]:
    """Genomes of the `count` kernels of the family that are most similar, the nearest first, each genome once.

    Kernels differ by the ratios of their sizes. Where several have one genome, the nearest of them counts.
    """
    relatives = [each for each in known if each.family == space.family]
    relatives.sort(key=lambda each: (_distance(space.facts, each.facts), sorted(each.facts.items())))
    return list(dict.fromkeys(each.genome for each in relatives))[:count]


def _distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    names = set(one) | set(other)
    return sum(abs(math.log2((1 + one.get(name, 0)) / (1 + other.get(name, 0)))) for name in sorted(names))
