# SPDX-License-Identifier: Apache-2.0
"""Arenas: the checker trusts no plan, and arenas are small, sound and the same each time."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartmem_tvm.planner.arena import Arena, Block, PlanError, aligned, check_arena, live_bytes, lower_bound
from smartmem_tvm.planner.arena_search import plan_arena

# A rectangle of 50 bytes and 20 steps in ten pieces: bytes, first step, last step.
FULL = [
    *((17, 2, 13), (6, 2, 13), (19, 3, 19), (12, 14, 19), (7, 2, 19)),
    *((1, 3, 19), (30, 0, 1), (7, 14, 19), (20, 0, 2), (4, 14, 19)),
]
CHAIN = [Block(100, 0, 1), Block(200, 1, 2), Block(100, 2, 3)]


def block(bytes, first, length):
    return Block(bytes, first, first + length)


BLOCKS = st.lists(st.builds(block, st.integers(1, 500), st.integers(0, 20), st.integers(0, 8)), max_size=30)


def overlap_by_bytes(blocks, arena):
    """What the checker is to find, one byte and one step at a time."""
    owners = {}
    for number, each in enumerate(blocks):
        for step in range(each.first, each.last + 1):
            for byte in range(arena.offsets[number], arena.offsets[number] + each.bytes):
                if owners.setdefault((step, byte), number) != number:
                    return True
    return False


@settings(max_examples=60, deadline=None)
@given(BLOCKS, st.sampled_from([1, 16, 64]))
def test_plans_are_sound_and_between_the_bound_and_one_place_for_each(blocks, alignment):
    arena = plan_arena(blocks, alignment, work=2000)
    check_arena(blocks, arena, alignment)
    assert not overlap_by_bytes(blocks, arena)
    assert lower_bound(blocks) <= arena.bound == lower_bound(blocks, alignment) <= arena.bytes
    assert arena.bytes <= sum(aligned(each.bytes, alignment) for each in blocks)
    assert arena == plan_arena(blocks, alignment, work=2000)


@settings(max_examples=60, deadline=None)
@given(BLOCKS.filter(len), st.data())
def test_the_checker_finds_every_overlap(blocks, data):
    offsets = tuple(data.draw(st.integers(0, 300)) for _ in blocks)
    arena = Arena(offsets, 1000, 0)
    if overlap_by_bytes(blocks, arena):
        with pytest.raises(PlanError, match="overlap"):
            check_arena(blocks, arena, 1)
    else:
        check_arena(blocks, arena, 1)


@pytest.mark.parametrize(
    ("offsets", "size", "rule"),
    [
        ((0, 64, 0), 264, "overlap"),  # the first two by 36 bytes at step 1
        ((0, 128, 192), 328, "overlap"),  # the second and the third
        ((0, 100, 0), 300, "multiple of 64"),
        ((0, 128, 0), 320, "within the 320 bytes"),
        ((0, 128, -64), 328, "within"),
        ((0, 128), 328, "2 offsets for 3 blocks"),
    ],
)
def test_bad_plans_are_refused(offsets, size, rule):
    with pytest.raises(PlanError, match=rule):
        check_arena(CHAIN, Arena(offsets, size, 0), 64)


def test_a_good_plan_is_not():
    check_arena(CHAIN, Arena((0, 128, 0), 328, 0), 64)
    check_arena([], Arena((), 0, 0), 64)


@pytest.mark.parametrize("wrong", [Block(0, 0, 1), Block(8, 2, 1)])
def test_blocks_without_bytes_or_steps_are_refused(wrong):
    with pytest.raises(PlanError, match="no bytes, or ends"):
        check_arena([wrong], Arena((0,), 64, 0), 64)


def test_live_bytes_of_each_step():
    assert live_bytes(CHAIN).tolist() == [100, 300, 300, 100]
    assert live_bytes(CHAIN, 64).tolist() == [128, 384, 384, 128]
    assert lower_bound([]) == 0


def test_the_search_mends_what_the_greedy_orders_miss():
    """Blocks cut out of a full rectangle: they fit back into it without a gap, and no order of the list finds how."""
    blocks = [Block(b, f, last) for b, f, last in FULL]
    assert lower_bound(blocks) * 20 == sum(each.bytes * (each.last - each.first + 1) for each in blocks)
    assert plan_arena(blocks, 1, work=0).bytes > lower_bound(blocks)
    assert plan_arena(blocks, 1).bytes == lower_bound(blocks)


def test_a_plan_keeps_the_lives_apart_that_touch_at_one_step():
    """What a kernel reads and what it writes are live at the same step."""
    arena = plan_arena([Block(64, 0, 3), Block(64, 3, 5)])
    assert sorted(arena.offsets) == [0, 64] and arena.bytes == arena.bound == 128
    assert plan_arena([dataclasses.replace(CHAIN[0], last=0), CHAIN[1]]).bytes == 256
