# SPDX-License-Identifier: Apache-2.0
"""Preloading: the checker trusts no plan, plans are sound, fit from the least budget on, and wait little."""

import dataclasses
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartmem_tvm.planner.arena import PlanError
from smartmem_tvm.planner.preload import (
    Load,
    OverBudget,
    PreloadPlan,
    Problem,
    Tensor,
    Use,
    check_preload,
    least_budget,
    lower_bound,
    plan_preload,
    simulate,
)
from smartmem_tvm.planner.preload_search import critical

# FlexNN's figure 8: three layers, two activations between them, one intermediate; each weight has 6 bytes.
THREE = Problem(
    3,
    (Tensor(4, 0, 1), Tensor(4, 1, 2), Tensor(2, 1, 1)),
    tuple(Use(n, 6, n, f"layer{n}") for n in range(3)),
    (1.0, 1.0, 1.0),
    alignment=1,
)
GOOD = PreloadPlan((0, 18, 16), (Load(4, -1, False), Load(10, -1, False), Load(4, 0, False)), 22, 0.0)


def random_problem(seed, steps=None, alignment=None, longest=6):
    chance = random.Random(seed)
    steps = chance.randint(1, 12) if steps is None else steps
    tensors, uses = [], []
    for step in range(steps):
        for _ in range(chance.choice((0, 1, 1, 2))):
            tensors.append(Tensor(chance.randint(1, 300), step, min(steps - 1, step + chance.randint(0, longest))))
        for _ in range(chance.choice((0, 1, 1, 2))):
            again = chance.choice(uses) if uses and chance.random() < 0.15 else None
            size = again.bytes if again else chance.randint(1, 600)
            uses.append(Use(again.weight if again else len(uses), size, step, f"layer{step}"))
    seconds = tuple(chance.uniform(0.1, 2) for _ in range(steps))
    return Problem(steps, tuple(tensors), tuple(uses), seconds, alignment or chance.choice((1, 16, 64)))


def overlap_by_bytes(problem, plan):
    """What the checker is to find, one byte and one step at a time."""
    things = [(("tensor", n), t.bytes, t.first, t.last, plan.offsets[n]) for n, t in enumerate(problem.tensors)]
    for number, (use, load) in enumerate(zip(problem.uses, plan.loads)):
        name = ("pinned", use.weight) if load.pinned else ("use", number)
        first, last = (0, problem.steps - 1) if load.pinned else (load.after + 1, use.step)
        things.append((name, use.bytes, first, last, load.offset))
    owners = {}
    for name, size, first, last, offset in things:
        for step in range(first, last + 1):
            for byte in range(offset, offset + size):
                if owners.setdefault((step, byte), name) != name:
                    return True
    return False


def with_load(number, **changes):
    loads = list(GOOD.loads)
    loads[number] = dataclasses.replace(loads[number], **changes)
    return dataclasses.replace(GOOD, loads=tuple(loads))


def test_three_layers_as_in_figure_8():
    plan = plan_preload(THREE, 22, 6.0, pin=False, time_limit=0)
    # Activations at both ends, all else between them. Layer 2's weight waits for the place of layer 0's.
    assert dataclasses.replace(plan, seconds=0.0) == GOOD
    # The first weight takes a second to read; then reading and computing take the same time, side by side.
    assert plan.seconds == 4.0
    assert plan_preload(THREE, 22, 6.0, preload=False, pin=False).seconds == 6.0


def test_three_layers_at_their_least():
    assert least_budget(THREE) == lower_bound(THREE) == 4 + 4 + 2 + 6
    plan = plan_preload(THREE, 16, 6.0)
    check_preload(THREE, plan, 16)
    # Layer 1's weight fits beside layer 0's, if not where Algorithm 1 looks first; layer 2's fits beside no other.
    assert [load.after for load in plan.loads] == [-1, -1, 1] and plan.seconds == 5.0
    assert plan_preload(THREE, 16, 6.0, pin=False, time_limit=0).seconds == 6.0
    with pytest.raises(OverBudget, match=r"step 1 \(layer1\) needs 16 bytes .* budget is 15") as caught:
        plan_preload(THREE, 15, 6.0)
    assert (caught.value.step, caught.value.needed) == (1, 16)


def test_with_much_memory_all_is_pinned():
    plan = plan_preload(THREE, 1000, 6.0)
    check_preload(THREE, plan, 1000)
    assert all(load.pinned for load in plan.loads)
    assert plan.bytes == 10 + 18 and plan.seconds == 3.0


def test_spare_memory_keeps_what_a_step_waits_for():
    problem = dataclasses.replace(THREE, tensors=(), uses=(Use(0, 2, 0), Use(1, 6, 1), Use(2, 2, 2)))
    plan = plan_preload(problem, 8, 1.0)
    check_preload(problem, plan, 8)
    assert [load.pinned for load in plan.loads] == [False, True, False]
    assert plan.seconds == 2 + 1 + 2 + 1  # reads 0, computes 0, reads 2 into 0's place while 1 computes, computes 2
    assert plan_preload(problem, 8, 1.0, pin=False).seconds > plan.seconds


def test_intermediates_that_a_preloaded_weight_would_divide():
    problem = Problem(2, (Tensor(5, 0, 0), Tensor(7, 1, 1)), (Use(0, 3, 0), Use(1, 2, 1)), (1.0, 1.0), 1)
    plan = plan_preload(problem, 10, 1.0, pin=False, time_limit=0)
    check_preload(problem, plan, 10)
    assert [load.after for load in plan.loads] == [-1, 0]  # bytes 3 to 5 are free from the beginning on


def test_a_weight_that_two_steps_read():
    problem = Problem(3, (), (Use(7, 100, 0), Use(1, 60, 1), Use(7, 100, 2)), (1.0,) * 3, 1)
    plan = plan_preload(problem, 160, 100.0)
    check_preload(problem, plan, 160)
    assert plan.bytes == 160 and all(load.pinned for load in plan.loads) and plan.loads[0] == plan.loads[2]
    plan = plan_preload(problem, 100, 100.0)
    assert not any(load.pinned for load in plan.loads) and [load.after for load in plan.loads] == [-1, 0, 1]
    assert plan.seconds == pytest.approx(3 + 2.6)


def test_a_step_with_two_weights_and_steps_with_none():
    problem = Problem(4, (), (Use(0, 10, 2), Use(1, 20, 2)), (1.0,) * 4, 1)
    assert least_budget(problem) == 30
    plan = plan_preload(problem, 30, 30.0, pin=False)
    check_preload(problem, plan, 30)
    assert [load.after for load in plan.loads] == [-1, -1] and plan.seconds == 4.0
    assert plan_preload(problem, 30, 30.0, preload=False, pin=False).seconds == 5.0


def test_nothing_to_plan():
    empty = Problem(0, (), (), ())
    assert least_budget(empty) == 0 and plan_preload(empty, 0, 1.0) == PreloadPlan((), (), 0, 0)
    check_preload(empty, PreloadPlan((), (), 0, 0), 0)
    idle = Problem(2, (), (), (1.0, 2.0))
    for pin in (False, True):
        assert plan_preload(idle, 0, 1.0, pin=pin) == PreloadPlan((), (), 0, 3.0)


@pytest.mark.parametrize("seed", range(150))
def test_random_plans_are_sound(seed):
    problem = random_problem(seed)
    least = least_budget(problem)
    assert lower_bound(problem) <= least
    total = sum(use.bytes for use in problem.uses)
    for budget in (least, least * 5 // 4, least + total // 2):
        slowest = None
        for preload, pin in ((False, False), (True, False), (True, True)):
            plan = plan_preload(problem, budget, 300.0, preload, pin, time_limit=0)
            check_preload(problem, plan, budget)
            assert not overlap_by_bytes(problem, plan)
            assert plan.seconds == pytest.approx(simulate(problem, plan, 300.0))
            after = [load.after for load in plan.loads if not load.pinned]
            assert after == sorted(after)
            # Each freedom is used only where it saves time.
            assert slowest is None or plan.seconds <= slowest
            slowest = plan.seconds
            if not preload:
                assert all(load.after == use.step - 1 for use, load in zip(problem.uses, plan.loads))


@pytest.mark.parametrize("seed", range(40))
def test_less_than_the_least_names_a_step(seed):
    problem = random_problem(seed, longest=11)
    least = least_budget(problem)
    for budget in (least - 1, least * 97 // 100, 0) if least else ():
        with pytest.raises(
            OverBudget, match=f"the budget is {budget // problem.alignment * problem.alignment} "
        ) as caught:
            plan_preload(problem, budget, 300.0)
        assert caught.value.needed == least
        names = {use.name for use in problem.uses if use.step == caught.value.step}
        assert not names or any(name in str(caught.value) for name in names)


@pytest.mark.parametrize("seed", range(40))
def test_all_is_pinned_where_all_fits(seed):
    problem = random_problem(seed)
    alignment = problem.alignment
    sizes = [t.bytes for t in problem.tensors] + list({use.weight: use.bytes for use in problem.uses}.values())
    plan = plan_preload(problem, sum(-(-size // alignment) * alignment for size in sizes), 300.0)
    assert all(load.pinned for load in plan.loads)
    assert plan.seconds == pytest.approx(sum(problem.seconds))


@pytest.mark.parametrize("seed", range(5))
def test_a_search_makes_nothing_worse(seed):
    problem = random_problem(seed, steps=30)
    budget = least_budget(problem) * 3 // 2
    plan = plan_preload(problem, budget, 200.0, time_limit=0)
    assert plan == plan_preload(problem, budget, 200.0, time_limit=0)
    better = plan_preload(problem, budget, 200.0, time_limit=0.05)
    check_preload(problem, better, budget)
    assert better.seconds <= plan.seconds


def test_random_activations_stay_near_the_bound():
    ratios = [
        least_budget(problem) / lower_bound(problem)
        for problem in (random_problem(seed, steps=20, alignment=64) for seed in range(30))
    ]
    assert sum(ratios) / len(ratios) < 1.02 and max(ratios) < 1.15


def test_the_good_plan_is_one():
    check_preload(THREE, GOOD, 22)
    assert simulate(THREE, GOOD, 6.0) == 4.0


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (dataclasses.replace(GOOD, offsets=(0, 18)), "2 offsets and 3 loads"),
        (dataclasses.replace(GOOD, loads=GOOD.loads[:2]), "3 offsets and 2 loads"),
        (dataclasses.replace(GOOD, bytes=23), "23 bytes, the budget 22"),
        (dataclasses.replace(GOOD, bytes=21), "within the 21 bytes"),
        (dataclasses.replace(GOOD, offsets=(-1, 18, 16)), "within"),
        (dataclasses.replace(GOOD, offsets=(0, 3, 16)), "overlap"),  # two activations at step 1
        (dataclasses.replace(GOOD, offsets=(0, 18, 15)), "overlap"),  # the intermediate and the weight of its step
        (with_load(2, after=-1), "overlap"),  # layer 0's weight is still needed
        (with_load(2, offset=12), "overlap"),  # layer 1's weight is needed at step 1
        (with_load(2, offset=0), "overlap"),  # so is the first activation
        (with_load(1, offset=4), "overlap"),  # both may be read at the beginning
        (with_load(0, pinned=True), "overlap"),  # with layer 2's weight
        (with_load(1, after=1), "not after one before its own"),
        (with_load(1, after=-2), "not after one before its own"),
        (with_load(2, offset=17), "within"),
    ],
)
def test_bad_plans_are_refused(plan, rule):
    with pytest.raises(PlanError, match=rule):
        check_preload(THREE, plan, 22)


def test_offsets_are_aligned():
    problem = dataclasses.replace(THREE, alignment=4)
    with pytest.raises(PlanError, match="multiple of 4"):
        check_preload(problem, GOOD, 22)


@pytest.mark.parametrize(
    ("loads", "rule"),
    [
        ((Load(0, -1, True), Load(0, -1, True)), None),
        ((Load(0, -1, True), Load(8, -1, True)), "not pinned at one place"),
        ((Load(0, -1, True), Load(8, -1, False)), "not pinned at one place"),
        ((Load(8, -1, False), Load(0, -1, True)), "not pinned at one place"),
        ((Load(0, -1, False), Load(8, -1, False)), None),
        ((Load(0, -1, False), Load(0, 0, False)), None),
        ((Load(0, -1, False), Load(0, -1, False)), "overlap"),
    ],
)
def test_a_pinned_weight_has_one_place(loads, rule):
    problem = Problem(2, (), (Use(0, 8, 0), Use(0, 8, 1)), (1.0, 1.0), 8)
    plan = PreloadPlan((), loads, 16, 2.0)
    if rule is None:
        check_preload(problem, plan, 16)
        return
    with pytest.raises(PlanError, match=rule):
        check_preload(problem, plan, 16)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 50), st.data())
def test_the_checker_finds_every_overlap(seed, data):
    problem = random_problem(seed, steps=4, alignment=1)
    offset = st.integers(0, 1500)
    pinned = {use.weight: data.draw(st.none() | offset) for use in problem.uses}
    loads = tuple(
        Load(data.draw(offset), data.draw(st.integers(-1, use.step - 1)), False)
        if pinned[use.weight] is None
        else Load(pinned[use.weight], -1, True)
        for use in problem.uses
    )
    plan = PreloadPlan(tuple(data.draw(offset) for _ in problem.tensors), loads, 3000, 0.0)
    if overlap_by_bytes(problem, plan):
        with pytest.raises(PlanError, match="overlap"):
            check_preload(problem, plan, 3000)
    else:
        check_preload(problem, plan, 3000)


def test_seconds_of_an_inference():
    # Loads take 2, 1 and 3 seconds: read at 2, 3 and 8, as the third waits for step 1, which ends at 5.
    problem = Problem(3, (), (Use(0, 2, 0), Use(1, 1, 1), Use(2, 3, 2)), (1.0, 2.0, 4.0), 1)
    loads = (Load(0, -1, False), Load(2, -1, False), Load(0, 1, False))
    assert simulate(problem, PreloadPlan((), loads, 3, 0.0), 1.0) == 12.0
    # What is pinned is not read: read 2 begins with the end of step 1, at 1 + 2 seconds after 1 of reading.
    kept = (Load(0, -1, True), *loads[1:2], Load(3, 1, False))
    assert simulate(problem, PreloadPlan((), kept, 6, 0.0), 1.0) == 1 + 2 + 3 + 4
    assert critical(problem.seconds, [0, 1, 2], [2, 1, 3], [-1, -1, 1]) == [2, 0]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"seconds": (1.0,)}, "seconds of 1 steps, not of 3"),
        ({"tensors": (Tensor(0, 0, 1),)}, "has no bytes"),
        ({"tensors": (Tensor(1, 2, 1),)}, "not within the 3 steps"),
        ({"tensors": (Tensor(1, 0, 3),)}, "not within the 3 steps"),
        ({"uses": (Use(0, 1, 3),)}, "not in the order of the 3 steps"),
        ({"uses": (Use(0, 1, 1), Use(1, 1, 0))}, "not in the order"),
        ({"uses": (Use(0, 0, 1),)}, "has no bytes"),
        ({"uses": (Use(0, 1, 1), Use(0, 2, 1))}, "a weight that had 1 bytes before"),
    ],
)
def test_bad_problems_are_refused(changes, rule):
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(THREE, **changes)


def test_a_loader_must_read_something():
    with pytest.raises(ValueError, match="bandwidth is 0"):
        plan_preload(THREE, 100, 0)


def test_a_plan_takes_a_moment():
    problem = random_problem(0, steps=600, alignment=64, longest=2)
    assert len(problem.uses) > 500 and len(problem.tensors) > 500
    begin = time.process_time()
    least = least_budget(problem)
    plan = plan_preload(problem, least * 4, 300.0, time_limit=0)
    assert time.process_time() - begin < 3  # 0.2 on an AMD Zen 5
    check_preload(problem, plan, least * 4)
