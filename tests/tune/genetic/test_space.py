# SPDX-License-Identifier: Apache-2.0
"""Genomes satisfy the constraints, however they are made."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smartmem_tvm.tune.genetic import (
    AtMost,
    Divides,
    EmptySpace,
    Genome,
    Known,
    Requires,
    Space,
    category,
    divisors,
    integer,
    nearest,
)


@st.composite
def spaces(draw) -> Space:
    """Tiles in one to three levels of two extents, a limit on the innermost, and a condition between categories."""
    extents, genes, constraints = [], [], []
    for axis in ("rows", "columns"):
        extent, levels = draw(st.integers(1, 240)), draw(st.integers(1, 3))
        names = tuple(f"{axis}{level}" for level in range(levels))
        genes += [integer(name, divisors(extent)) for name in names]
        constraints.append(Divides(extent, names))
        extents.append(extent)
    genes += [category("order", ("ijk", "ikj", "kij")), category("pack", (False, True))]
    constraints.append(AtMost(draw(st.integers(1, 64)), ("rows0", "columns0")))
    constraints.append(Requires(("order", "pack"), lambda order, pack: pack or order != "kij"))
    return Space(tuple(draw(st.permutations(genes))), tuple(constraints), "f", dict(zip("mn", extents, strict=True)))


@settings(max_examples=60, deadline=None)
@given(spaces(), st.integers(0, 2**32))
def test_random_genomes_satisfy_every_constraint(space, seed):
    rng = np.random.default_rng(seed)
    for _ in range(5):
        assert _holds(space, space.random(rng))


@settings(max_examples=60, deadline=None)
@given(spaces(), spaces(), st.integers(0, 2**32), st.floats(0, 1))
def test_mutants_and_children_of_other_extents_satisfy_every_constraint(space, other, seed, rate):
    rng = np.random.default_rng(seed)
    one, stranger = space.random(rng), other.random(rng)
    for genome in (space.mutate(one, rng, rate), space.cross(one, stranger, rng), space.repair(stranger, rng)):
        assert _holds(space, genome)


def _holds(space, genome) -> bool:
    """Checked by hand, not by the constraints themselves."""
    products = [math.prod(v for n, v in genome.items() if n.startswith(axis)) for axis in ("rows", "columns")]
    divide = all(extent % product == 0 for extent, product in zip(space.facts.values(), products, strict=True))
    limit = next(c.limit for c in space.constraints if isinstance(c, AtMost))
    within = genome["rows0"] * genome["columns0"] <= limit
    return divide and within and (genome["pack"] or genome["order"] != "kij") and space.holds(genome)


@settings(max_examples=60, deadline=None)
@given(spaces(), st.integers(0, 2**32))
def test_repair_leaves_alone_what_satisfies_the_constraints(space, seed):
    rng = np.random.default_rng(seed)
    genome = space.random(rng)
    assert space.repair(genome, rng) == genome


@settings(max_examples=40, deadline=None)
@given(spaces(), st.integers(0, 2**32))
def test_genes_of_a_child_come_from_its_parents_where_nothing_forbids_it(space, seed):
    rng = np.random.default_rng(seed)
    free = Space(space.genes, (), space.family, space.facts)
    one, other = free.random(rng), free.random(rng)
    child = free.cross(one, other, rng)
    assert all(child[name] in (one[name], other[name]) for name in child)


@settings(max_examples=60, deadline=None)
@given(spaces(), st.integers(0, 2**32))
def test_a_mutant_differs_where_no_constraint_is_in_the_way(space, seed):
    rng = np.random.default_rng(seed)
    free = Space(space.genes, (), space.family, space.facts)
    genome = free.random(rng)
    assert free.mutate(genome, rng, 0.0) != genome
    differing = [name for name, value in free.mutate(genome, rng, 0.0).items() if value != genome[name]]
    assert len(differing) == 1


@settings(max_examples=30, deadline=None)
@given(spaces())
def test_all_lists_what_holds_each_once(space):
    assume(math.prod(len(gene.options) for gene in space.genes) < 20_000)
    listed = list(space.all())
    assert len(set(listed)) == len(listed) == space.size(10**6)
    assert all(_holds(space, genome) for genome in listed)
    everything = Space(space.genes).all()
    assert sum(space.holds(genome) for genome in everything) == len(listed)


def test_repair_takes_the_nearest_by_ratio():
    space = Space((integer("tile", divisors(56)),))
    rng = np.random.default_rng(0)
    assert space.repair({"tile": 32}, rng)["tile"] == 28
    assert space.repair({"tile": 1000}, rng)["tile"] == 56
    assert space.repair({"other": 3}, rng)["tile"] in divisors(56)


def test_a_wish_for_the_product_of_tiles_is_kept_within_the_extent():
    space = Space(
        (integer("a", divisors(48)), integer("b", divisors(48))), (Divides(48, ("a", "b")), AtMost(16, ("a", "b")))
    )
    genome = space.repair({"a": 8, "b": 8}, np.random.default_rng(0))
    assert genome["a"] == 8 and genome["b"] == 2


def test_a_space_without_genomes_says_so():
    space = Space((integer("a", (2, 4)),), (AtMost(1, ("a",)),), family="matmul")
    with pytest.raises(EmptySpace, match="family 'matmul'"):
        space.random(np.random.default_rng(0))
    assert space.size(10) == 0


def test_mutation_reaches_every_value_and_prefers_neighbours():
    space, rng = Space((integer("n", range(1, 10)),)), np.random.default_rng(0)
    reached = [space.mutate({"n": 5}, rng, 0.0)["n"] for _ in range(500)]
    assert set(reached) == set(range(1, 10)) - {5}
    assert sum(n in (4, 6) for n in reached) > 2 * sum(n in (3, 7) for n in reached) * 0.7


def test_a_gene_needs_different_options():
    with pytest.raises(ValueError, match="gene x needs options"):
        category("x", ("a", "a"))
    with pytest.raises(ValueError, match="gene x needs options"):
        integer("x", ())


def test_a_genome_is_a_key_that_forgets_the_order_of_its_genes():
    one, other = Genome({"a": 1, "b": True}), Genome({"b": True, "a": 1})
    assert one == other and hash(one) == hash(other) and len({one, other}) == 1
    assert one != {"a": 1, "b": True} and repr(one) == "Genome(a=1, b=True)"


def test_the_nearest_records_are_of_the_family_and_of_similar_sizes():
    space = Space((integer("t", (1, 2, 4, 8)),), family="matmul", facts={"m": 100, "n": 64})
    known = [
        Known("matmul", {"m": 6400, "n": 64}, Genome({"t": 8})),
        Known("window", {"m": 100, "n": 64}, Genome({"t": 1})),
        Known("matmul", {"m": 128, "n": 64}, Genome({"t": 4})),
        Known("matmul", {"m": 100, "n": 32}, Genome({"t": 2})),
        Known("matmul", {"m": 64, "n": 8}, Genome({"t": 4})),
    ]
    assert [genome["t"] for genome in nearest(space, known, 5)] == [4, 2, 8]
    assert [genome["t"] for genome in nearest(space, known, 2)] == [4, 2]
