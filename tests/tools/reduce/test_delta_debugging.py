# SPDX-License-Identifier: Apache-2.0
"""The smallest part of a list that still has a property."""

from hypothesis import given
from hypothesis import strategies as st

from smartmem_tvm.tools.reduce.delta_debugging import smallest


@given(st.integers(1, 60), st.data())
def test_finds_exactly_what_is_needed(count, data):
    needed = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    assert smallest(range(count), lambda kept: needed <= set(kept)) == sorted(needed)


def test_nothing_can_be_left_out_of_what_is_found():
    def holds(kept):  # of two ways to fail
        return {3, 17} <= set(kept) or {5, 6, 30} <= set(kept)

    found = smallest(range(40), holds)
    assert holds(found)
    assert not any(holds([each for each in found if each != left]) for left in found)


def test_asks_a_logarithmic_number_of_times():
    asked = []
    assert smallest(range(1024), lambda kept: asked.append(kept) or 700 in kept) == [700]
    assert len(asked) < 40


def test_never_asks_about_nothing():
    smallest(range(9), lambda kept: bool(kept) or 1 / 0)
