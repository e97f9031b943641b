# SPDX-License-Identifier: Apache-2.0
"""The search finds what is known to be best, sooner than chance, and asks nothing twice."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from landscapes import at_random, broken, rugged, run, separable, tiles
from smartmem_tvm.tune.genetic import Failure, GeneticSearch, Settings, Space, category, integer

LANDSCAPES = {"separable": separable, "rugged": rugged, "broken": broken}
SEEDS = range(8)


def mean_log(costs) -> float:
    return float(np.mean(np.log(list(costs))))


@pytest.mark.parametrize("make", LANDSCAPES.values(), ids=LANDSCAPES.keys())
@pytest.mark.parametrize("budget", [64, 192])
def test_beats_random_search_with_the_same_budget(make, budget):
    landscape = make()
    bred = mean_log(run(landscape, GeneticSearch(landscape.space, seed), budget)[-1] for seed in SEEDS)
    drawn = mean_log(at_random(landscape, budget, seed) for seed in SEEDS)
    assert bred < drawn - math.log(1.3)


@pytest.mark.parametrize("make", LANDSCAPES.values(), ids=LANDSCAPES.keys())
def test_finds_the_optimum(make):
    """Among 270000 genomes, in less than one trial for each hundred of them."""
    landscape = make()
    for seed in range(3):
        assert run(landscape, GeneticSearch(landscape.space, seed), 2000)[-1] == landscape.lowest


def test_the_same_seed_asks_the_same_questions():
    landscape = rugged()

    def questions(seed):
        search, asked = GeneticSearch(landscape.space, seed, surrogate=lambda g: [len(str(x)) for x in g]), []
        for _ in range(20):
            asked += search.ask(7)
            for genome in asked[-7:]:
                search.tell(genome, landscape.outcome(genome))
        return asked

    assert questions(3) == questions(3)
    assert questions(3) != questions(4)


def test_asks_nothing_twice_and_only_what_holds():
    landscape = broken()
    search = GeneticSearch(landscape.space, 0, settings=Settings(patience=20))
    asked = []
    for _ in range(100):
        genomes = search.ask(5)
        asked += genomes
        for genome in genomes:
            search.tell(genome, landscape.outcome(genome))
    assert len(set(asked)) == len(asked) == search.trials == 500
    assert all(landscape.space.holds(genome) for genome in asked)
    assert search.restarts > 0


@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.parametrize("surrogate", [None, lambda genomes: [genome["a"] for genome in genomes]])
def test_a_small_space_is_asked_to_its_end(batch, surrogate):
    space = Space((integer("a", (1, 2, 3)), category("b", "xyz"), category("c", (False,))))
    search = GeneticSearch(space, 5, surrogate=surrogate)
    asked = []
    while genomes := search.ask(batch):
        asked += genomes
        for genome in genomes:
            search.tell(genome, float(genome["a"]))
    assert search.exhausted and set(asked) == set(space.all()) and len(asked) == 9
    assert search.ask(1) == [] and search.best[1] == 1.0


def test_the_space_is_not_exhausted_while_there_is_more():
    search = GeneticSearch(Space((integer("a", range(10)),)), 0)
    search.ask(10)
    assert not search.exhausted
    assert search.ask(1) == [] and search.exhausted


def test_seeds_are_asked_first_and_repaired():
    space = tiles(96, 96)
    seed = {"row_tile": 7, "row_inner": 4, "column_tile": 3, "column_inner": 16, "unroll": 4, "order": "ikj"}
    first = GeneticSearch(space, 0, seeds=[seed]).ask(1)[0]
    assert (
        space.holds(first) and first["row_inner"] == 4 and first["column_inner"] == 16 and first["row_tile"] in (6, 8)
    )


def test_what_a_similar_kernel_knew_saves_trials():
    landscape, relative = separable(), separable()
    known = GeneticSearch(relative.space, 0)
    run(relative, known, 400)
    budget = 32
    alone = mean_log(run(landscape, GeneticSearch(landscape.space, seed), budget)[-1] for seed in SEEDS)
    guests = [{**known.best[0], "row_inner": 7, "unroll": 8}]
    helped = mean_log(run(landscape, GeneticSearch(landscape.space, s, guests=guests), budget)[-1] for s in SEEDS)
    assert helped < alone - math.log(1.3)


def test_a_good_surrogate_saves_trials_and_a_bad_one_does_not_stop_the_search():
    landscape, budget = rugged(), 64

    def reached(surrogate):
        searches = (GeneticSearch(landscape.space, seed, surrogate=surrogate) for seed in SEEDS)
        return mean_log(run(landscape, search, budget)[-1] for search in searches)

    knows = reached(lambda genomes: [separable().cost(genome) for genome in genomes])
    lies = reached(lambda genomes: [-separable().cost(genome) for genome in genomes])
    assert knows < reached(None) < lies
    assert run(landscape, GeneticSearch(landscape.space, 0, surrogate=lambda g: [0.0] * len(g)), 500)[-1] < 1.5


def test_the_best_always_stays_among_the_parents():
    landscape = separable()
    search = GeneticSearch(landscape.space, 1, settings=Settings(patience=10**9))
    run(landscape, search, 300)
    assert search.best[0] in search._population
    costs = [landscape.cost(genome) for genome in search._population]
    assert costs == sorted(costs)


def test_a_restart_draws_new_genomes_and_keeps_the_best():
    landscape = separable()
    search = GeneticSearch(landscape.space, 1, settings=Settings(patience=15))
    history = run(landscape, search, 400)
    assert search.restarts > 1 and search.best[1] == history[-1] == min(history)


def test_a_search_escapes_from_a_trap():
    """A wide valley ends far from the optimum; only a restart finds the other one."""
    space = Space((integer("x", range(40)), integer("y", range(40))))

    def cost(genome):
        x, y = genome["x"], genome["y"]
        return 0.5 + (abs(x - 36) + abs(y - 36)) / 8 if x + y > 66 else 1.0 + (x + y) / 80

    best = []
    for seed in range(5):
        search = GeneticSearch(space, seed, settings=Settings(patience=40))
        for _ in range(80):
            for genome in search.ask(8):
                search.tell(genome, cost(genome))
        best.append(search.best[1])
    assert max(best) < 0.8


def test_a_failed_candidate_is_not_asked_again_and_a_failed_machine_is():
    space = Space((integer("a", range(1, 5)),))
    search = GeneticSearch(space, 0)
    one, two = search.ask(2)
    search.tell(one, Failure("it crashed"))
    search.tell(two, Failure("the worker was killed", candidate=False))
    rest = search.ask(10)
    assert two in rest and one not in rest and len(rest) == 3
    for genome in rest:
        search.tell(genome, 1.0)
    assert search.best[0] in rest


def test_nothing_but_times_of_what_was_asked_is_taken():
    search = GeneticSearch(tiles(), 0)
    (genome,) = search.ask(1)
    with pytest.raises(ValueError, match="was not asked for"):
        search.tell(tiles().random(np.random.default_rng(9)), 1.0)
    for nonsense in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive number of seconds"):
            search.tell(genome, nonsense)
    assert search.best is None


_WALK = """
from smartmem_tvm.tune.genetic.genes import integer
from smartmem_tvm.tune.genetic.search import GeneticSearch
from smartmem_tvm.tune.genetic.space import Space

search = GeneticSearch(Space(tuple(integer(name, range(9)) for name in ("a", "tile", "unroll"))), 3)
for _ in range(12):
    for genome in search.ask(8):
        search.tell(genome, 1.0 + sum(genome.values()))
        print(dict(genome))
"""


@pytest.mark.device
def test_a_search_is_the_same_in_every_process():
    """Names of genes have other hashes in every process."""
    walks = {
        subprocess.run(
            [sys.executable, "-c", _WALK],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(walks) == 1 and len(walks.pop().splitlines()) == 96
