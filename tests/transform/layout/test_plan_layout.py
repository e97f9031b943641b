# SPDX-License-Identifier: Apache-2.0
"""PlanLayout: all tensors together are stored as costs say, and results stay."""

import logging
import math

import numpy as np
import pytest
import tvm
from tvm import relax

import smartmem_tvm as sm
from covering import singles
from helpers import assert_same_results, calls, constant, legal, nodes, op, random
from smartmem_tvm.errors import UserError
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.kernel import DECISIONS, shape_of
from smartmem_tvm.pass_registry import make_pass
from smartmem_tvm.planner.layout_exact import Unsolved
from smartmem_tvm.schedule import loop_orders
from smartmem_tvm.transform import EliminateLayout, FuseOperators, PlanLayout
from smartmem_tvm.transform.layout import plan_layout
from smartmem_tvm.transform.layout.plan_layout import layout_questions
from smartmem_tvm.tune.profile_store import ProfileStore, kernel_key

PLANNERS = ("fluid", "exact")
planners = pytest.mark.parametrize("planner", PLANNERS)


def fused(build, *shapes):
    return FuseOperators()(EliminateLayout()(legal(build, *shapes)))


def columns_sum(x):
    """The sum wants axis 1 of what the matmul writes."""
    return op.sum(op.matmul(x, constant(7, 11)), axis=1)


def branches(x):
    """A tensor that three kernels read, and a sum of what they make."""
    y = op.nn.conv2d(x, constant(8, 4, 3, 3), padding=1)
    one = op.nn.softmax(op.nn.conv2d(y, constant(8, 8, 1, 1)), axis=1)
    other = op.nn.conv2d(y, constant(8, 1, 3, 3), padding=1, groups=8)
    z = op.reshape(op.permute_dims(op.add(op.add(one, other), y), (0, 2, 3, 1)), (1, 35, 8))
    return op.nn.softmax(op.matmul(z, constant(8, 6)), axis=-1)


def planned(mod, costs, planner="fluid", loops=loop_orders):
    return PlanLayout(planner, costs, loops)(mod)


def summary(mod) -> dict:
    return [entry for entry in read_log(mod) if entry["pass"] == "PlanLayout"][-1]


def innermost_is(length: int):
    """Costs by which a kernel takes less the more of its parameters have an innermost dimension of a length."""
    return lambda func, _: 10.0 - sum(int(param.shape[-1]) == length for param in func.params if len(param.shape))


def drawn(seed: int):
    return lambda func, _: np.random.default_rng([seed, int(kernel_key(func)[:16], 16)]).uniform(1, 2)


@planners
def test_a_tensor_is_stored_as_its_kernels_take_least(planner):
    before = fused(columns_sum, (3, 5, 7))
    after = planned(before, innermost_is(5), planner)
    assert_same_results(before, after, *random((3, 5, 7)))
    assert shape_of(nodes(after)[0].kernel.outputs[0]) == (3, 11, 5)
    assert len(calls(before)) == len(calls(after)), "a kernel for the transition"
    entry = next(e for e in read_log(after) if e.get("tensor"))
    assert entry["order"] == [0, 2, 1] and entry["seconds"] == {"0 1 2": 20.0, "0 2 1": 18.0}
    said = summary(after)
    assert (said["planner"], said["moved"], said["seconds_now"], said["seconds"]) == (planner, 1, 20.0, 18.0)


@planners
def test_as_it_is_where_that_is_fastest(planner):
    before = fused(columns_sum, (3, 5, 7))
    after = planned(before, innermost_is(11), planner)
    assert summary(after)["moved"] == 0 and shape_of(nodes(after)[0].kernel.outputs[0]) == (3, 5, 11)


@pytest.mark.parametrize(("seed", "planner"), singles(range(8), PLANNERS))
def test_any_layouts_compute_the_same(planner, seed):
    before = fused(branches, (1, 4, 5, 7))
    after = planned(before, drawn(seed), planner)
    assert_same_results(before, after, *random((1, 4, 5, 7)))
    said = summary(after)
    assert said["seconds"] <= said["seconds_now"] and said["unmeasured"] == 0


def test_seeds_lead_to_different_layouts():
    before = fused(branches, (1, 4, 5, 7))
    found = {str([entry.get("order") for entry in read_log(planned(before, drawn(seed)))]) for seed in range(8)}
    assert len(found) > 3


def test_inputs_and_results_keep_the_user_s_order():
    def build(x):
        y = op.matmul(x, constant(7, 11))
        return y, op.sum(y, axis=1)

    before = fused(build, (3, 5, 7))
    after = planned(before, innermost_is(5))
    assert not [entry for entry in read_log(after) if entry.get("order", [0, 1, 2]) != [0, 1, 2]]
    assert_same_results(before, after, *random((3, 5, 7)))


def test_without_costs_tensors_stay_and_a_warning_says_so(caplog):
    before = fused(columns_sum, (3, 5, 7))
    after = planned(before, None)
    assert "has no measured times of 2 kernels" in caplog.text and "smartmem profile" in caplog.text
    assert summary(after)["planner"] == "none" and summary(after)["moved"] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_cost_that_is_no_time_is_not_considered(bad, caplog):
    good = innermost_is(5)

    def costs(func, base):
        return bad if int(func.params[-1].shape[-1]) == 5 and len(func.params[-1].shape) == 3 else good(func, base)

    after = planned(fused(columns_sum, (3, 5, 7)), costs)
    assert "which is no time" in caplog.text and "of 1 kernels not all forms were measured" in caplog.text
    assert summary(after)["moved"] == 0 and summary(after)["unmeasured"] == 1


def test_without_the_cost_of_now_a_kernel_s_tensors_stay():
    good = innermost_is(5)
    after = planned(fused(columns_sum, (3, 5, 7)), lambda func, base: None if func.same_as(base) else good(func, base))
    assert summary(after)["seconds"] is not None


@pytest.mark.parametrize("error", ["no optimum was proved in 3 s", "HiGHS: ill"])
def test_where_the_solver_cannot_the_dynamic_program_decides(error, monkeypatch, caplog):
    def fails(*_):
        raise Unsolved(error)

    monkeypatch.setattr(plan_layout, "exact_layouts", fails)
    after = planned(fused(columns_sum, (3, 5, 7)), innermost_is(5), "exact")
    assert error in caplog.text and "layout='fluid' decides" in caplog.text
    assert summary(after)["planner"] == "fluid" and summary(after)["moved"] == 1


def test_the_loop_order_goes_with_the_layout():
    """What is fastest with columns in the outer loop is scheduled so."""

    def costs(func, _):
        return 1.0 if dict((func.attrs or {}).get(DECISIONS) or {}).get("matmul.swapped") == 1 else 2.0

    before = fused(lambda x: op.matmul(op.matmul(x, constant(24, 40)), constant(40, 32)), (48, 24))
    after = planned(before, costs)
    found = [f.attrs[DECISIONS] for f in after.functions.values() if DECISIONS in (f.attrs or {})]
    assert [dict(each) for each in found] == [{"matmul.swapped": 1}] * 2
    assert_same_results(before, planned(before, costs), *random((48, 24)))
    assert not [f for f in PlanLayout(costs=costs)(before).functions.values() if DECISIONS in (f.attrs or {})]


def test_the_rule_for_matmuls_follows(caplog):
    """Through to code, which computes the same."""
    mod = legal(lambda x: op.matmul(op.matmul(x, constant(24, 40)), constant(40, 32)), (48, 24))
    outputs = {}
    for swapped in (0, 1):
        store = ProfileStore(None, tvm.target.Target("llvm"))
        store.form_latency = lambda func, _, s=swapped: (
            1.0 if dict((func.attrs or {}).get(DECISIONS) or {}).get("matmul.swapped") == s else 2.0
        )
        compiled = sm.compile(mod, "llvm", sm.Options(layout="fluid", profiles=store))
        (outputs[swapped],) = compiled.run(*random((48, 24)))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5)
    assert "no rule can do" not in caplog.text


def test_each_question_is_asked_once():
    """Two equal layers are one kernel; a kernel like a matmul has three loop orders in each form."""

    def build(x):
        for _ in range(2):
            x = op.nn.softmax(op.matmul(x, constant(8, 8)), axis=1)
        return x

    for loops, times in (((loop_orders,), 3), ((), 1)):
        questions = layout_questions(fused(build, (2, 8, 8)), *loops)
        forms = [form for question in questions for form in question.forms]
        assert len({kernel_key(form) for form in forms}) == len(forms)
        assert all(kernel_key(q.base) in set(map(kernel_key, q.forms)) for q in questions)
        matmuls = [q for q in questions if len(q.base.params) == 3]
        assert matmuls and all(len(q.forms) in (2 * times, 4 * times) for q in matmuls)


def test_nothing_is_said_of_what_has_one_form():
    log = read_log(planned(fused(lambda x: op.exp(x), (4, 8)), None))
    assert not [entry for entry in log if entry["pass"] == "PlanLayout"]


def test_the_reduction_dimension_is_a_planner_on_every_target():
    after = make_pass("plan-layout", sm.Options(layout="reduction-dimension"))(fused(columns_sum, (3, 5, 7)))
    assert shape_of(nodes(after)[0].kernel.outputs[0]) == (3, 11, 5)
    assert {entry["pass"] for entry in read_log(after)} >= {"SelectLayout"}


def test_a_planner_that_does_not_exist():
    with pytest.raises(UserError, match="layout 'best' does not exist: use reduction-dimension, fluid, exact, True"):
        sm.Options(layout="best")


def test_options_without_a_store_compile(caplog):
    caplog.set_level(logging.WARNING)
    compiled = sm.compile(legal(columns_sum, (3, 5, 7)), "llvm", sm.Options(layout="fluid"))
    (x,) = random((3, 5, 7))
    (plain,) = sm.compile(legal(columns_sum, (3, 5, 7)), "llvm").run(x)
    np.testing.assert_array_equal(compiled.run(x)[0], plain)
    assert "tensors in other orders" in caplog.text


@pytest.mark.parametrize("layout", ["fluid", "reduction-dimension", False])
def test_a_size_that_is_open(layout):
    """Its kernels have no loop structure that passes know: tensors stay, and results are right."""
    size, builder = tvm.tirx.Var("n", "int64"), relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((size, 8, 5), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.softmax(builder.emit(op.matmul(x, constant(5, 6))), axis=1))
            out = builder.emit_output(op.sum(y, axis=1))
        builder.emit_func_output(out)
    compiled = sm.compile(builder.get(), "llvm", sm.Options(layout=layout))
    for rows in (1, 3):
        np.testing.assert_allclose(compiled.run(*random((rows, 8, 5)))[0], np.ones((rows, 6)), rtol=1e-5)
