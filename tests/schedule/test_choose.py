# SPDX-License-Identifier: Apache-2.0
"""Who is asked about a kernel, in which order, what is kept of the answers, and what the passes before learn of it."""

import json
from math import isclose

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, topi
from tvm.s_tir.schedule import ScheduleError

from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.schedule.choose import (
    after,
    before,
    choose,
    cpu_rules,
    default_rules,
    first_of,
    gpu_rules,
    plan_of,
    plans,
    rules_for,
)
from smartmem_tvm.schedule.core.decisions import DECISIONS, asking, attempt, declined, given_values, noted, priced
from smartmem_tvm.schedule.core.plans import PLAN, Price, plan_on
from smartmem_tvm.schedule.core.rule import NestRule, Rule
from smartmem_tvm.schedule.cpu.matmul import Matmul
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.schedule.cpu.slide import Slide
from smartmem_tvm.schedule.gpu.window.window import WindowSlide
from smartmem_tvm.schedule.schedule_kernels import kernel_plans, kernel_rules, without_plans
from tunable_kernels import CASES

CPU = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell", "num-cores": 8})
_BLOCKS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90a", **_BLOCKS})
OPENCL = tvm.target.Target({"kind": "opencl", "max_num_threads": 256, "max_shared_memory_per_block": 32768})
TARGETS = {"cpu": CPU, "cuda": CUDA, "opencl": OPENCL}


def kernels(dtype="float32") -> dict:
    """Kernels of every family, by name."""
    x, w, k = (
        te.placeholder((64, 128), dtype, "x"),
        te.placeholder((128, 96), dtype, "w"),
        te.reduce_axis((0, 128), "k"),
    )

    def term(i, j):
        return te.sum(x[i, k].astype("float32") * w[k, j].astype("float32"), axis=k)

    found = {name: case.func() for name, case in CASES.items()}
    found["doubled"] = te.create_prim_func([x, te.compute((64, 128), lambda i, j: x[i, j] + x[i, j])])
    return {**found, "product": te.create_prim_func([x, w, te.compute((64, 96), term)])}


def scheduled(func, target=CPU, rules=None):
    with target:
        mod = ScheduleKernels(rules)(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    return mod["main"]


def test_every_rule_is_asked_in_one_order():
    assert [each.name for each in default_rules()] == [each.name for each in (*cpu_rules(), *gpu_rules())]
    assert [each.name for each in before(Matmul)] == ["Depthwise", "Bfloat16Product", "Slide", "CodedProduct"]
    assert [each.name for each in after(Matmul)] == ["Window", "RowChains", "Rows", "Elementwise"]
    assert [each.name for each in before(WindowSlide)] == ["GpuCoded", "GpuFewRows", "GpuMatrix", "WindowProduct"]
    for target, known in ((CPU, cpu_rules()), (CUDA, gpu_rules()), (OPENCL, gpu_rules())):
        assert [each.name for each in rules_for(target)] == [each.name for each in known]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_first_that_takes_a_kernel_has_it_and_those_before_say_why_not(target):
    for name, func in kernels().items():
        choice = choose(func, target)
        names = [each.name for each in rules_for(target)]
        assert [each.rule for each in choice.rejected] == names[: len(choice.rejected)], name
        assert choice.plan is not None and not choice.plan.reason, name
        assert all(each.reason and each.func is None for each in choice.rejected), name


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_rules_written_here_have_reasons_of_their_own(target):
    """And not only the words that they are for other kernels."""
    for name, func in kernels().items():
        for rule, plan in zip(rules_for(target), plans(func, target), strict=True):
            if plan.reason and isinstance(rule, NestRule):
                assert plan.reason != f"it is for {rule.family}", (name, rule.name)
                assert not plan.reason.endswith("."), (name, plan.reason)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_scheduled_kernel_keeps_what_was_chosen_and_what_was_not(target):
    for name, func in kernels("float16").items():
        made, choice = scheduled(func, target), choose(func, target)
        kept = plan_on(made)
        assert kept["chosen"]["rule"] == made.attrs["smartmem.rule"]["name"] == choice.plan.rule, name
        flat = {f"{n}.{f}": v for n, fields in kept["chosen"]["decisions"].items() for f, v in fields.items()}
        assert flat == {n: int(v) for n, v in given_values(choice.plan.decisions).items()}, name
        assert [(each["rule"], each["reason"]) for each in kept["rejected"]] == [
            (each.rule, each.reason) for each in choice.rejected
        ]


def test_every_price_is_what_its_terms_come_to():
    seen = set()
    for target in TARGETS.values():
        for func in (*kernels().values(), *kernels("float16").values()):
            for plan in plans(func, target):
                for price in plan.prices:
                    seen.add(plan.rule)
                    assert price.cycles > 0 and all(cycles >= -1e-6 for cycles in price.terms.values()), plan.rule
                    if price.how == "sum":
                        assert isclose(price.cycles, sum(price.terms.values()), rel_tol=1e-9), plan.rule
                    else:
                        assert max(price.terms.values()) <= price.cycles <= sum(price.terms.values()) + 1e-6
    assert {"Slide", "Matmul", "WindowProduct", "GpuMatmul", "GpuMatrix", "GpuRowChains"} <= seen


def test_the_price_of_a_matmul_is_what_it_was_chosen_by():
    plan = choose(kernels()["product"], CPU).plan
    (price,) = plan.prices
    made = Matmul().ask(kernels()["product"], CPU, lambda kernel, params: Matmul.plan(kernel, params))
    assert price.cycles > price.terms["multiply-adds"] > 0 and price.shared in (1, CpuParams.of(CPU).cores)
    assert made.tile.width == plan.decisions[0].values["width"]


def test_the_plan_is_no_part_of_the_kernel():
    func = kernels()["product"]
    made = scheduled(func)
    mod = without_plans(tvm.IRModule({"main": made}))
    assert PLAN in made.attrs and PLAN not in mod["main"].attrs
    assert tvm_ffi.structural_equal(mod["main"], made.without_attr(PLAN))
    assert kernel_rules(mod)["main"]["name"] == "Matmul" and kernel_plans(mod) == {}
    assert set(kernel_plans(tvm.IRModule({"main": made}))) == {"main"}


def test_equal_kernels_keep_equal_plans():
    assert tvm_ffi.structural_equal(scheduled(kernels()["product"]), scheduled(kernels()["product"]), True)


def test_what_a_kernel_brings_along_is_what_its_plan_says():
    func = kernels()["product"]
    given = dict(given_values(choose(func, CPU).plan.decisions))
    given["matmul.height"] = 3
    kept = plan_on(scheduled(func.with_attr(DECISIONS, {name: int(value) for name, value in given.items()})))
    assert kept["chosen"]["decisions"]["matmul"]["height"] == 3


def test_decisions_of_another_kernel_are_a_reason():
    func = kernels()["product"].with_attr(DECISIONS, {"slide.height": 1})
    plan = plan_of(Matmul(), func, CPU)
    assert plan.raised and "nothing asks for slide.height" in plan.reason


class Picky(Rule):
    """A rule for nothing."""

    def apply(self, func, target):
        return declined("rows below 4")


class Silent(Rule):
    """The rule for kernels of no kind."""

    def apply(self, func, target):
        return None


class Broken(Rule):
    def apply(self, func, target):
        raise ScheduleError("it does not fit.")


def test_a_rule_says_why_or_what_it_is_for():
    func = kernels()["doubled"]
    choice = choose(func, CPU, [Picky(), Silent(), Broken()])
    assert choice.plan is None
    assert [each.reason for each in choice.rejected] == [
        "rows below 4",
        "it is for kernels of no kind",
        "it does not fit.",
    ]
    assert [each.raised for each in choice.rejected] == [False, False, True]
    kept = json.loads(choice.as_json())
    assert kept == {
        "chosen": None,
        "rejected": [{"rule": each.rule, "reason": each.reason} for each in choice.rejected],
    }


def test_a_reason_does_not_pass_to_the_next_rule():
    reasons = [each.reason for each in plans(kernels()["doubled"], CPU, [Picky(), Silent()])]
    assert reasons == ["rows below 4", "it is for kernels of no kind"]


def test_prices_of_what_was_tried_in_vain_do_not_count():
    def fails():
        priced(lambda: Price(1.0))

    with asking(kernels()["doubled"]) as account:
        priced(lambda: Price(2.0))
        assert attempt(fails) is None
    assert [make().cycles for make in account.prices] == [2.0]


def test_notes_of_what_was_tried_in_vain_do_not_show():
    def declines():
        noted("tiles", rows=4)
        noted("blocks", rows=8)

    def fails():
        noted("tiles", rows=2)
        raise ScheduleError("no")

    with asking(kernels()["doubled"]) as account:
        noted("tiles", rows=16)
        assert attempt(declines) is None
        with pytest.raises(ScheduleError):
            attempt(fails)
        assert attempt(lambda: noted("panels", width=3) or True)
    assert account.notes == {"tiles": {"rows": 16}, "panels": {"width": 3}}


def test_outside_of_a_question_nothing_is_kept():
    assert declined("no") is None
    priced(lambda: Price(1.0))
    noted("tiles", rows=4)
    assert attempt(lambda: None) is None


def test_which_rule_takes_a_prepared_kernel_is_found_without_a_loop():
    func = CASES["convolution"].func()
    families = [*before(Matmul), Matmul()]
    rule, plan = Slide().ask(func, CPU, lambda kernel, params: first_of(families, kernel, params))
    assert rule.name == next(each.name for each in families if plan_of(each, func, CPU).func is not None)
    assert plan is not None
    doubled = kernels()["doubled"]
    assert Slide().ask(doubled, CPU, lambda kernel, params: first_of(families, kernel, params)) is None


def test_a_rule_that_cannot_do_as_decided_counts_as_the_first():
    func = CASES["convolution"].func()
    assert choose(func, CPU).plan.rule == "Slide"
    given = func.with_attr(DECISIONS, {"slide.lines": 10**6})
    with asking(given):
        rule, plan = Slide().ask(given, CPU, lambda kernel, params: first_of([Slide(), Matmul()], kernel, params))
    assert (rule.name, plan) == ("Slide", None)


def test_random_products_keep_prices_that_hold():
    """Sizes at random, units and primes among them: every plan has a price that is finite, and its own tile."""
    rng = np.random.default_rng(5)
    for _ in range(25):
        rows, depth, columns = (int(rng.choice([1, 2, 3, 7, 16, 31, 64, 97, 128])) for _ in range(3))
        x, w = te.placeholder((rows, depth), name="x"), te.placeholder((depth, columns), name="w")
        func = te.create_prim_func([x, w, topi.matmul(x, w)])
        for target in TARGETS.values():
            plan = choose(func, target).plan
            assert all(np.isfinite(price.cycles) for price in plan.prices), (rows, depth, columns)
            assert json.loads(choose(func, target).as_json())["chosen"]["rule"] == plan.rule
