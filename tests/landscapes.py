# SPDX-License-Identifier: Apache-2.0
"""Toy search landscapes with known optima: a space, the cost of a genome, and the lowest cost."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from smartmem_tvm.tune.genetic import AtMost, Divides, Failure, GeneticSearch, Space, category, divisors, integer


@dataclass(frozen=True)
class Landscape:
    space: Space
    cost: Callable
    lowest: float

    def outcome(self, genome):
        cost = self.cost(genome)
        return Failure("out of registers") if cost is None else cost


def tiles(rows: int = 224, columns: int = 768) -> Space:
    """Two levels of tiles for rows and columns, and three categories."""
    genes = (
        integer("row_tile", divisors(rows)),
        integer("row_inner", divisors(rows)),
        integer("column_tile", divisors(columns)),
        integer("column_inner", divisors(columns)),
        integer("unroll", (1, 2, 4, 8, 16)),
        category("order", ("ijk", "ikj", "kij", "jik")),
        category("pack", (False, True)),
    )
    constraints = (
        Divides(rows, ("row_tile", "row_inner")),
        Divides(columns, ("column_tile", "column_inner")),
        AtMost(256, ("row_inner", "column_inner")),
    )
    return Space(genes, constraints, "matmul", {"rows": rows, "columns": columns})


_BEST = {"row_tile": 8, "row_inner": 4, "column_tile": 12, "column_inner": 16, "unroll": 4}


def _far(genome) -> float:
    numbers = sum(math.log2(genome[name] / best) ** 2 for name, best in _BEST.items())
    return numbers + 2.0 * (genome["order"] != "ikj") + 1.0 * (not genome["pack"])


def separable() -> Landscape:
    """Return a landscape in which genes are independent."""
    return Landscape(tiles(), lambda genome: 1.0 + _far(genome), 1.0)


def rugged() -> Landscape:
    """Return a landscape in which genes depend on each other, with noise added to each genome."""

    def cost(genome) -> float:
        noise = zlib.crc32(repr(sorted(genome.items())).encode()) / 2**32
        together = abs(math.log2(genome["row_inner"] * genome["column_inner"] / 64))
        far = _far(genome)
        return 1.0 + far + together + (0.5 * noise if far else 0.0)

    return Landscape(tiles(), cost, 1.0)


def broken() -> Landscape:
    """Return a landscape in which large parts of the space fail, close to the optimum as well."""

    def cost(genome) -> float | None:
        if genome["row_inner"] * genome["column_inner"] > 64 or genome["row_tile"] * genome["unroll"] > 64:
            return None
        return 1.0 + _far(genome)

    return Landscape(tiles(), cost, 1.0)


def run(landscape: Landscape, search: GeneticSearch, budget: int, batch: int = 8) -> list[float]:
    """Return the lowest cost after each trial (infinite before one succeeds)."""
    history, best = [], math.inf
    while len(history) < budget and (genomes := search.ask(min(batch, budget - len(history)))):
        for genome in genomes:
            outcome = landscape.outcome(genome)
            search.tell(genome, outcome)
            best = best if isinstance(outcome, Failure) else min(best, outcome)
            history.append(best)
    return history


def at_random(landscape: Landscape, budget: int, seed: int) -> float:
    """Return the lowest cost of `budget` different random genomes."""
    rng, seen = np.random.default_rng(seed), {}
    while len(seen) < budget:
        genome = landscape.space.random(rng)
        seen.setdefault(genome, landscape.cost(genome))
    return min(cost for cost in seen.values() if cost is not None)
