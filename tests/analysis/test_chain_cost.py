# SPDX-License-Identifier: Apache-2.0
"""Chains: along which axes their parts need nothing of each other, and what they take."""

from tvm import tirx

from smartmem_tvm.analysis.chain_cost import LARGE, Axes, Load, Sketch, alone, cycles, groups_of, plan_of


def one(written, shape, along, *loads, terms=1, size=0):
    return Sketch(written, shape, along, tuple(Load(*each) for each in loads), 1, terms, size)


def parts(*sketches):
    return Axes().having(sketches).parts


def test_elements_that_read_themselves_are_parts():
    first = one("a", (3, 5), ("i", "j"))
    assert parts(first, one("b", (3, 5), ("i", "j"), ("a", (3, 5), ("i", "j")))) == 15


def test_a_sum_over_an_axis_leaves_the_other():
    first = one("a", (3, 5), ("i", "j"))
    assert parts(first, one("b", (3, 5), ("i", "j"), ("a", (3, 5), ("i", None)))) == 3


def test_an_axis_that_is_turned_or_read_twice_is_none():
    square = one("a", (4, 4), ("i", "j"))
    assert parts(square, one("b", (4, 4), ("i", "j"), ("a", (4, 4), ("j", "i")))) == 16
    turned = one("b", (4, 4), ("i", "j"), ("a", (4, 4), ("j", "i")), ("a", (4, 4), ("i", "j")))
    assert parts(square, turned) == 1


def test_a_shifted_place_and_a_shorter_walk_are_none():
    row = one("a", (8,), ("i",))
    assert parts(row, one("b", (8,), ("i",), ("a", (8,), (None,)))) == 1
    assert parts(row, one("b", (5,), ("i",), ("a", (8,), ("i",)))) == 1


def test_what_a_stage_writes_at_one_place_has_no_parts():
    row = one("a", (2, 8), ("t", "i"))
    assert parts(row, one("a", (2, 8), (None, "i"), ("a", (2, 8), (None, "i")))) == 8


def test_stages_that_have_nothing_in_common_are_no_parts_until_a_reader_joins_them():
    first, other = one("a", (40,), ("i",)), one("b", (40,), ("i",))
    assert parts(first, other) == 1
    reader = one("c", (40,), ("i",), ("a", (40,), ("i",)), ("b", (40,), ("i",)))
    assert parts(first, other, reader) == 40


def test_a_launch_is_worth_small_work_on_one_processor_and_not_large():
    device = LARGE
    small = [Sketch("a", (64,), ("i",), (), 64, 64, 4 * 64 * 64)]
    large = [Sketch("a", (768,), ("i",), (), 768, 256, 4 * 768 * 256)]
    assert cycles(small, 1) < alone(small, 1, device)
    assert cycles(large, 1) > alone(large, 1, device)
    assert cycles(large, groups_of(4096, device)) < alone(large, 1, device)


def test_parts_of_few_numbers_are_done_by_threads_and_others_by_groups():
    state = tirx.decl_buffer((1, 64), "float32", "state", layout=None)
    pointwise = Sketch(state, (1, 64), (None, "i"), (), 64, 1, 0)
    plan = plan_of([pointwise], [state], LARGE)
    assert (plan.parts, plan.private, plan.shared_bytes) == (64, True, 0)
    product = Sketch(state, (1, 64), (None, "i"), (Load(state, (1, 64), (None, None)),), 64, 64, 0)
    plan = plan_of([pointwise, product], [state], LARGE)
    assert (plan.parts, plan.private, plan.shared_bytes) == (1, False, 256)
    assert plan.threads == 1024  # 64 sums, each of which 16 threads share
