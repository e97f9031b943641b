# SPDX-License-Identifier: Apache-2.0
"""`covering`: no pair of values, and no value, is left out."""

import shutil
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

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


GRID = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize(("b", "c"), [(0, 1), (2, 3), (4, 5)])
@pytest.mark.parametrize("d", range(3))
def test_pairs(a, b, c, d): print("pairs", a, b, d)

@pytest.fixture(params=[1, 2])
def f(request): return request.param

@pytest.mark.each_value
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", [*range(4), pytest.param(4, marks=pytest.mark.slow)])
def test_each(a, b, f): print("each", f, a, b)

@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
def test_all(a, b): print("all", a, b)
"""


@pytest.fixture
def ran(tmp_path):
    """Return a function: pytest's arguments -> what the tests of `GRID` that ran have printed, by test."""
    tests = Path(__file__).parent
    (tmp_path / "test_grid.py").write_text(GRID)
    shutil.copy(tests.parent / "pyproject.toml", tmp_path)
    for name in ("conftest.py", "covering.py"):
        shutil.copy(tests / name, tmp_path)

    def ran(*more: str) -> dict[str, list]:
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        lines = [line.lstrip(".").split() for line in done.stdout.splitlines()]
        return {name: [tuple(each[1:]) for each in lines if each[:1] == [name]] for name in ("pairs", "each", "all")}

    return ran


def test_a_marked_grid_is_cut_and_no_other(ran):
    found = ran("test_grid.py")
    assert 9 <= len(found["pairs"]) <= 11 and len(found["all"]) == 9
    for i, j in combinations(range(3), 2):
        assert len({(case[i], case[j]) for case in found["pairs"]}) == 9
    assert len(found["each"]) == 8  # for each value of the fixture; the slow case is none of this tier
    assert all(len({case[1:][i] for case in found["each"]}) == n for i, n in enumerate((3, 4)))


def test_full_grids(ran):
    assert [len(each) for each in ran("test_grid.py", "--full-grids", "-m", "").values()] == [27, 30, 9]


def test_a_case_that_is_named_runs(ran):
    assert len(ran(*(f"test_grid.py::test_pairs[{n}-0-1-{n}]" for n in range(3)))["pairs"]) == 3
