# SPDX-License-Identifier: Apache-2.0
"""Tuned kernels beside untuned ones: outputs and times."""

from itertools import chain, repeat

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.s_tir import meta_schedule as ms

from helpers import module
from smartmem_tvm.deploy.judge import difference, judge, untuned_seconds
from smartmem_tvm.deploy.this_machine import LoadedModel, ThisMachine
from smartmem_tvm.pipeline import prepare_passes
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.trace import schedule_of
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload
from tunable_kernels import CASES, textured_tasks

TARGET = parse_target("llvm")


def record_of(mod, genes=None, target=TARGET):
    kernel = TunableKernel.of(mod["main"], target)
    trace = schedule_of(mod, {**kernel.seed, **(genes or {})}, kernel.space).trace
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod)
    return ms.database.TuningRecord(trace, ms.database.Workload(mod), [1e-3], target, arguments)


@pytest.mark.parametrize("name", ["matmul with a weight", "attention", "layer norm"])
def test_decisions_give_the_same_numbers(name):
    with TARGET:
        func = tvm.transform.Sequential(prepare_passes(None))(tvm.IRModule({"main": CASES[name].func()}))["main"]
    mod = workload(with_constants(func, CASES[name].constants))
    genome = TunableKernel.of(mod["main"], TARGET).space.random(np.random.default_rng(3))
    first, second = judge(mod, TARGET, [record_of(mod), record_of(mod, genome)])
    assert not first.wrong and not second.wrong
    assert 0 < first.seconds < 1 and 0 < second.seconds < 1 and first.untuned == second.untuned


@pytest.mark.device
def test_kernels_with_textures_are_compared():
    target = parse_target("opencl-texture")
    for task in textured_tasks(target):
        genome = task.kernel.space.random(np.random.default_rng(3))
        (verdict,) = judge(task.mod, target, [record_of(task.mod, genome, target)])
        assert not verdict.wrong and 0 < verdict.seconds < 1 and 0 < verdict.untuned < 1


@pytest.mark.device
@pytest.mark.parametrize("target", [TARGET, parse_target("opencl-texture")], ids=["cpu", "textures"])
def test_a_record_that_does_not_apply_is_no_winner(target):
    """Else the untuned kernel would be compared with itself."""
    plain = workload(with_constants(CASES["matmul"].func(), ()))
    mod = plain if target is TARGET else textured_tasks(target)[1].mod
    of_another = record_of(workload(with_constants(CASES["long matmul"].func(), ())), target=target)
    record = record_of(mod, target=target)
    foreign = ms.database.TuningRecord(of_another.trace, record.workload, [1e-3], target, record.args_info)
    verdicts = judge(mod, target, [of_another, foreign, record])
    assert [verdict.wrong for verdict in verdicts[::2]] == ["the record is of another kernel", ""]
    assert verdicts[1].seconds is not None or verdicts[1].wrong == "no rule can do as was decided"


@pytest.fixture
def a_little_too_much(monkeypatch):
    """Every kernel after the first computes more than it should."""
    outputs, factors = LoadedModel.outputs, chain([1.0], repeat(1.0001))

    def wrong(model):
        factor = np.float32(next(factors))
        return [factor * each for each in outputs(model)]

    monkeypatch.setattr(LoadedModel, "outputs", wrong)


def test_a_wrong_schedule_is_found(a_little_too_much):
    mod = workload(with_constants(CASES["matmul"].func(), ()))
    (verdict,) = judge(mod, TARGET, [record_of(mod)], ThisMachine(TARGET))
    assert "output 0 differs by" in verdict.wrong and verdict.seconds is None


def test_indices_stay_within_what_they_index():
    with TARGET:
        legal = relax.transform.LegalizeOps()(module(lambda x, i: relax.op.take(x, i, axis=0), (5, 4), ((3,), "int64")))
    func = next(f for g, f in legal.functions_items() if g.name_hint == "take")
    assert 0 < untuned_seconds(workload(with_constants(func, ())), TARGET) < 1


def test_a_kernel_with_two_outputs_is_compared_in_both():
    x = te.placeholder((20, 30), name="x")
    outputs = [te.compute((20, 30), lambda i, j: x[i, j] * 2.0), te.compute((20, 30), lambda i, j: x[i, j] + 1.0)]
    mod = workload(with_constants(te.create_prim_func([x, *outputs]), ()))
    assert 0 < untuned_seconds(mod, TARGET) < 1


@pytest.mark.parametrize(
    ("found", "want", "says"),
    [
        (np.float32([1, 2]), np.float32([1, 2.00001]), ""),
        (np.float32([1, 2]), np.float32([1, 2.001]), "output 0 differs by 0.001"),
        (np.float32([1, np.nan]), np.float32([1, 2]), "1 of 2 elements are not finite"),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), ""),
        (np.float16([1, 2]), np.float16([1, 2.004]), ""),
        (np.int32([1, 2]), np.int32([1, 3]), "1 of 2 elements differ"),
        (np.zeros(0, "float32"), np.zeros(0, "float32"), ""),
    ],
)
def test_differences(found, want, says):
    assert says in difference([found], [want]) and bool(says) == bool(difference([found], [want]))
