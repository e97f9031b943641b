# SPDX-License-Identifier: Apache-2.0
"""`covering`: no pair of values, and no value, is left out."""

from itertools import combinations, product

import pytest

from covering import pairs, singles

GRIDS = [("ab", "cde", "fghi"), ("ab",) * 6, ("abc",) * 4, ("abcdefgh", "ij", "kl"), ("a", "bc", "de"), ("abc", "de")]


@pytest.mark.parametrize("axes", GRIDS, ids="-".join)
def test_each_pair_of_values_meets(axes):
    cases = pairs(*axes)
    for (i, first), (j, second) in combinations(enumerate(axes), 2):
        assert {(case[i], case[j]) for case in cases} == set(product(first, second))


@pytest.mark.parametrize("axes", GRIDS, ids="-".join)
def test_each_value_occurs(axes):
    cases = singles(*axes)
    assert len(cases) == max(map(len, axes))
    assert all({case[i] for case in cases} == set(axis) for i, axis in enumerate(axes))


def test_fewer_cases_than_the_grid():
    assert len(pairs(*("ab",) * 6)) <= 8  # of 64
    assert len(pairs(*("abc",) * 4)) <= 12  # of 81
    assert len(pairs("abcdefgh", "ij", "kl")) == 16  # of 32: the two longest axes need as many


def test_equal_values_are_different_ones():
    assert sorted(pairs([0, 0], [1, 2])) == [(0, 1), (0, 1), (0, 2), (0, 2)]


def test_one_axis_and_the_same_cases_again():
    assert pairs("abc") == [("a",), ("b",), ("c",)]
    assert pairs("abc", "de", range(4)) == pairs("abc", "de", range(4))
    assert pairs("abc", "", "de") == []


def test_a_shorter_axis_is_rotated():
    assert singles("abcd", "xy") == [("a", "x"), ("b", "y"), ("c", "y"), ("d", "x")]
