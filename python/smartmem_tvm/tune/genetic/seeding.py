# SPDX-License-Identifier: Apache-2.0
"""Starting points for a new kernel: the best genomes of similar kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .genes import Genome
from .space import Space


@dataclass(frozen=True)
class Known:
    """The best known genome of a kernel.

    Attributes
    ----------
    family : str
    facts : mapping of str to int
        The facts of its `Space`.
    genome : Genome
    """

    family: str
    facts: Mapping[str, int]
    genome: Genome


def nearest(space: Space, known: Iterable[Known], count: int) -> list[Genome]:
    """Return the `count` distinct genomes of the most similar kernels of the family, the nearest first.

    The distance of kernels is that of their sizes, by ratios. If several kernels have the same genome, the nearest of
    them counts.
    """
    relatives = [each for each in known if each.family == space.family]
    relatives.sort(key=lambda each: (_distance(space.facts, each.facts), sorted(each.facts.items())))
    return list(dict.fromkeys(each.genome for each in relatives))[:count]


def _distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    names = set(one) | set(other)
    return sum(abs(math.log2((1 + one.get(name, 0)) / (1 + other.get(name, 0)))) for name in sorted(names))
