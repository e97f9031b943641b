# SPDX-License-Identifier: Apache-2.0
"""Columns of a drawn graph: whatever the graph, no two tensors that are waited for share one."""

from hypothesis import given
from hypothesis import strategies as st

from smartmem_tvm.tools.page.graph_columns import lanes, last_readers


@st.composite
def graphs(draw) -> list[list[int]]:
    count = draw(st.integers(1, 30))
    return [draw(st.lists(st.integers(0, at - 1), max_size=3, unique=True)) if at else [] for at in range(count)]


@given(graphs())
def test_tensors_that_are_waited_for_have_columns_of_their_own(inputs):
    columns, last = lanes(inputs), last_readers(inputs)
    for second in range(len(inputs)):
        for first in range(second):
            if last[first] > second:
                assert columns[first] != columns[second], (first, second)


@given(graphs())
def test_there_are_no_more_columns_than_needed(inputs):
    last = last_readers(inputs)
    waiting = [sum(last[first] > node for first in range(node)) for node in range(len(inputs))]
    assert max(lanes(inputs)) <= max(waiting)


def test_a_chain_is_straight_and_a_residual_stands_beside_it():
    assert lanes([[], [0], [1], [2]]) == [0, 0, 0, 0]
    assert lanes([[], [0], [1], [0, 2], [3]]) == [0, 1, 1, 0, 0]


def test_a_reader_before_its_source_is_no_reason_to_wait():
    assert last_readers([[1], []]) == [0, 1]
    assert lanes([[1], []]) == [0, 0]
