# SPDX-License-Identifier: Apache-2.0
"""A space of several rules: one of them counts, and the genes of the others keep still."""

import numpy as np
import pytest

from smartmem_tvm.tune.genetic import GeneticSearch, Genome, Requires, Space, integer
from smartmem_tvm.tune.rule_space import RuleSpace

SLOW = Space((integer("a.x", range(4)), integer("a.y", range(3))), (Requires(("a.x", "a.y"), lambda x, y: x >= y),))
FAST = Space((integer("b.z", range(5)),), facts={"b.rows": 7})
CHOICES = {"a.x": 2, "a.y": 1, "b.z": 3}
SPACE = RuleSpace.of("rule", {0: SLOW, 4: FAST}, CHOICES, "slow")


def is_sound(genome) -> bool:
    own = "a." if genome["rule"] == 0 else "b."
    return SPACE.holds(genome) and all(genome[n] == v for n, v in CHOICES.items() if not n.startswith(own))


def test_all_genomes_are_those_of_the_parts():
    found = list(SPACE.all())
    assert len(found) == len(set(found)) == SLOW.size(100) + FAST.size(100) == SPACE.size(100)
    assert all(map(is_sound, found)) and SPACE.facts == {"b.rows": 7} and SPACE.family == "slow"


def test_what_moves_without_its_rule_is_no_genome():
    assert SPACE.holds({**CHOICES, "rule": 0, "a.x": 3})
    assert not SPACE.holds({**CHOICES, "rule": 4, "a.x": 3})
    assert not SPACE.holds({**CHOICES, "rule": 0, "b.z": 1})
    (one, *_) = SPACE.constraints
    assert one.allows({"a.x": 3}) and not one.allows({"a.x": 3, "b.z": 1}) and not one.allows({"a.x": 3, "rule": 4})


def test_whatever_makes_a_genome_makes_sound_ones_of_both_rules():
    rng = np.random.default_rng(0)
    drawn = [SPACE.random(rng) for _ in range(40)]
    mutated = [SPACE.mutate(each, rng, 0.3) for each in drawn]
    crossed = [SPACE.cross(one, other, rng) for one, other in zip(drawn, mutated, strict=True)]
    for found in (drawn, mutated, crossed):
        assert all(map(is_sound, found)) and {each["rule"] for each in found} == {0, 4}
    # Mostly a mutation stays with its rule, or nothing would ever come of a rule.
    assert 20 < sum(a["rule"] == b["rule"] for a, b in zip(drawn, mutated, strict=True)) < 40


def test_a_wish_is_repaired_within_its_rule():
    rng = np.random.default_rng(0)
    repaired = SPACE.repair({"rule": 0, "a.x": 1, "a.y": 9, "b.z": 0}, rng)
    assert dict(repaired) == {**CHOICES, "rule": 0, "a.x": 1, "a.y": 1}
    assert is_sound(SPACE.repair({"b.z": 2}, rng)) and is_sound(SPACE.repair({"rule": 17}, rng))


def test_a_search_goes_through_all_of_it_and_finds_the_better_rule():
    search = GeneticSearch(SPACE, 1, seeds=[{**CHOICES, "rule": 0}])
    asked = []
    while genomes := search.ask(3):
        asked += genomes
        for genome in genomes:
            search.tell(genome, 5.0 + genome["a.x"] if genome["rule"] == 0 else 1.0 + genome["b.z"])
    assert len(set(asked)) == len(asked) == SPACE.size(100)
    assert search.best == (Genome({**CHOICES, "rule": 4, "b.z": 0}), 1.0)


def test_rules_with_genes_of_one_name_are_refused():
    with pytest.raises(ValueError, match="genes of the same name"):
        RuleSpace.of("rule", {0: FAST, 1: FAST}, CHOICES, "both")
