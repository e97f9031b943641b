# SPDX-License-Identifier: Apache-2.0
"""Changes: whether an index moves with a loop."""

import pytest

from opencl_index import changes

MOVE = [
    "i",
    "(int4)(get_local_id(0), i, 0, 0)",
    "((convert_int(get_group_id(0))) * 4) + i",
    "i >> 2",  # in a longer loop
    "(((step * 16) + i) + 3) / 64",
    "index_ptr[i]",
    "min((int)(i), (int)48)",
    "select(0, i, (convert_int((3 <= row))))",
    "row < 3 && i > 2",
    "row != 3 || !i",
]
STAY = [
    "row",
    "((row * 4) + i) >> 2",
    "(((step * 16) + ((convert_int(get_local_id(0))) & 1) * 4) + i + 16) >> 6",
    "(int4)((row * 8 + i) / 4, i / 4, 0, 0)",
    "index_ptr[i / 4]",
    "i - i",
    "min((int)i, (int)0)",
    "get_local_id(i & 4)",
]
UNKNOWN = ["i > 2 ? row : row", "{i, i}", "i ** ", "row / (i - i)", "min(i)"]


@pytest.mark.parametrize("expression", MOVE)
def test_it_moves(expression):
    assert changes(expression, "i", 64)


@pytest.mark.parametrize("expression", STAY)
def test_it_stays(expression):
    assert not changes(expression, "i", 4)


@pytest.mark.parametrize("expression", UNKNOWN)
def test_what_is_not_understood_may_move(expression):
    assert changes(expression, "i", 4)


def test_a_loop_of_unknown_length():
    assert changes("i >> 2", "i", None)


def test_a_loop_that_runs_once():
    assert not changes("i", "i", 1)
