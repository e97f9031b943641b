# SPDX-License-Identifier: Apache-2.0
"""A model compiled with the records of a file."""

import json
import logging

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from helpers import constant, module
from smartmem_tvm.deploy.build import compile, optimize
from smartmem_tvm.deploy.fill_profiles import device_name
from smartmem_tvm.deploy.tuned import here, measured, open_tuned, tuning_report
from smartmem_tvm.errors import UserError
from smartmem_tvm.pipeline import Options
from smartmem_tvm.schedule import PackWeights, ScheduleKernels
from smartmem_tvm.schedule.core.decisions import DECISIONS
from smartmem_tvm.schedule.core.rivals import NUMBERED
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.apply_records import tuning_of
from smartmem_tvm.tune.metaschedule import context
from smartmem_tvm.tune.records import Records, lines_of
from smartmem_tvm.tune.select_winners import choose
from smartmem_tvm.tune.tasks import tasks_of
from smartmem_tvm.tune.trace import schedule_of
from tunable_kernels import two_matmuls

TARGET, OPENCL = parse_target("llvm"), parse_target("opencl")
WEIGHT = constant(40, 72)


@pytest.fixture
def model():
    return module(lambda x: relax.op.nn.relu(relax.op.matmul(x, WEIGHT)), (31, 40))


@pytest.fixture
def path(model, tmp_path):
    """Records with a winner for the one kernel of the model: panels of 32 columns."""
    with TARGET:
        (task,) = tasks_of(optimize(model), TARGET)
    records = Records(tmp_path / "records.jsonl", here(TARGET), {"date": "", "command": ""})
    trace = schedule_of(task.mod, {**task.kernel.seed, "matmul.width": 32}, task.kernel.space).trace
    arguments = ms.arg_info.ArgInfo.from_entry_func(task.mod)
    record = ms.database.TuningRecord(trace, records.commit_workload(task.mod), [1e-3], TARGET, arguments)
    records.commit_tuning_record(record)
    records.commit_winner(record, 1e-3, 2e-3)
    return records.path


def test_a_model_is_compiled_with_the_winners(model, path):
    seen = {}
    records = open_tuned(path, TARGET)
    with TARGET:
        applied = records(optimize(model))
        plain = optimize(model)
    decided = [dict(func.attrs[DECISIONS]) for func in applied.functions.values() if DECISIONS in (func.attrs or {})]
    assert [int(each["matmul.width"]) for each in decided] == [32]
    assert not any(DECISIONS in (func.attrs or {}) for func in plain.functions.values())
    x = np.random.default_rng(0).standard_normal((31, 40)).astype("float32")
    for name, found in (("tuned", records), ("plain", None)):
        seen[name] = compile(model, TARGET, Options(records=found)).run(x)[0]
    np.testing.assert_allclose(seen["tuned"], np.maximum(x @ WEIGHT.value.numpy(), 0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(seen["tuned"], seen["plain"], rtol=1e-4, atol=1e-4)


def of_tvm(mod, target):
    """A random candidate of TVM's own space."""
    task = context(mod, target, "replay", 0)
    task.pre_tuning(4, 4, task.generate_design_space(), ms.database.MemoryDatabase(), None)
    return task.generate_measure_candidates()[0].sch.trace


@pytest.mark.device
@pytest.mark.parametrize(
    "name", ["llvm", *(pytest.param(n, marks=pytest.mark.slow) for n in ("opencl", "opencl-texture"))]
)
def test_records_of_both_spaces_in_one_file_make_one_network(name, tmp_path):
    """Each kernel has a record of each space; the winner is ours for the one and TVM's for the other."""
    target, x = parse_target(name), np.random.default_rng(0).standard_normal((36, 24)).astype("float32")
    with target:
        tasks = tasks_of(optimize(two_matmuls()), target)
    # TVM's schedules write no whole texels: the kernel that does comes first.
    tasks.sort(key=lambda task: "texture" not in str(task.mod["main"].params[-1].scope()))
    records = Records(tmp_path / "records.jsonl", here(target), {"date": "", "command": ""})
    genomes = []
    for number, task in enumerate(tasks):
        genomes.append(task.kernel.space.random(np.random.default_rng(1)))
        traces = [schedule_of(task.mod, genomes[-1], task.kernel.space).trace, of_tvm(task.mod, target)]
        arguments = ms.arg_info.ArgInfo.from_entry_func(task.mod)
        kept = records.commit_workload(task.mod)
        made = [ms.database.TuningRecord(trace, kept, [1e-3], target, arguments) for trace in traces]
        for record in made:
            records.commit_tuning_record(record)
        records.commit_winner(made[number], 1e-3, 2e-3)
    plain = compile(two_matmuls(), target)
    tuned = compile(two_matmuls(), target, Options(records=open_tuned(records.path, target)))
    assert {"Matmul" in rule["name"] for rule in plain.rules.values()} == {True}
    assert sorted(rule["name"] == "TVM" for rule in tuned.rules.values()) == [False, True]
    with target:
        (given,) = [
            dict(func.attrs[DECISIONS])
            for func in open_tuned(records.path, target)(optimize(two_matmuls())).functions.values()
            if DECISIONS in (func.attrs or {})
        ]
    assert given == dict(genomes[0]) != tasks[0].kernel.seed
    report = tuning_report(tuned.tuning, len(tuned.rules))
    assert (report["tuned"], report["kernels"], report["left_out"]) == (2, 2, [])
    assert [run["records"] for run in report["runs"]] == [str(records.path)]
    decided = {name: each["decisions"] for name, each in report["gains"].items()}
    assert {name: decisions is None for name, decisions in decided.items()} == {
        name: rule["name"] == "TVM" for name, rule in tuned.rules.items()
    }
    assert given in decided.values() and all(each["gain"] == 2 for each in report["gains"].values())
    assert tuning_report(plain.tuning, len(plain.rules)) == {
        "kernels": 2, "tuned": 0, "runs": [], "left_out": [], "gains": {}
    }  # fmt: skip
    np.testing.assert_allclose(tuned.run(x)[0], plain.run(x)[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rule", ["Slide", "Matmul", "Window"])
def test_a_record_may_leave_a_kernel_to_another_rule(rule, tmp_path):
    """Whoever packs weights for the one rule leaves them alone for the others."""
    weight = constant(20, 5, 3, 3)
    model = module(lambda x: relax.op.nn.relu(relax.op.nn.conv2d(x, weight)), (2, 5, 11, 13))
    with TARGET:
        (task,) = tasks_of(optimize(model), TARGET)
    rng = np.random.default_rng(3)
    genome = task.kernel.space.repair({**task.kernel.space.random(rng), "rule": NUMBERED.index(rule)}, rng)
    records = Records(tmp_path / "records.jsonl", here(TARGET), {"date": "", "command": ""})
    trace = schedule_of(task.mod, genome, task.kernel.space).trace
    arguments = ms.arg_info.ArgInfo.from_entry_func(task.mod)
    record = ms.database.TuningRecord(trace, records.commit_workload(task.mod), [1e-3], TARGET, arguments)
    records.commit_tuning_record(record)
    records.commit_winner(record, 1e-3, 2e-3)
    tuned = compile(model, TARGET, Options(records=open_tuned(records.path, TARGET)))
    assert [each["name"] for each in tuned.rules.values()] == [rule]
    (gains,) = tuning_report(tuned.tuning, 1)["gains"].values()
    assert {name.split(".")[0] for name in gains["decisions"]} == {rule.lower()}
    x = rng.standard_normal((2, 5, 11, 13)).astype("float32")
    plain = compile(model, TARGET).run(x)[0]
    np.testing.assert_allclose(tuned.run(x)[0], plain, rtol=1e-4, atol=1e-4)


def test_records_of_another_target_or_device_or_of_other_threads_are_left_out(model, path):
    def report(target, threads=None):
        with target:
            mod = open_tuned(path, target, threads)(optimize(model))
            return tuning_report(tuning_of(ScheduleKernels()(PackWeights()(mod))), 1)

    assert report(TARGET)["tuned"] == 1
    (left_out,) = report(TARGET, threads=61)["left_out"]
    assert "and this is for 61 threads" in left_out["reason"]
    other = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})
    assert "found for target llvm" in report(other)["left_out"][0]["reason"] and report(other)["tuned"] == 0
    text = path.read_text().replace(json.dumps(here(TARGET)["target"]), json.dumps(here(OPENCL)["target"]))
    path.write_text(text.replace('"date"', '"device": "another GPU", "date"', 1))
    (left_out,) = choose(lines_of(path), here(OPENCL), device_name(OPENCL)).left_out.values()
    assert left_out == f"found on another GPU, and this is {device_name(OPENCL)}"
    assert not open_tuned(path, OPENCL).database.get_all_tuning_records()


def test_decisions_that_no_rule_can_follow_are_told_of(model, path):
    """As after a change of the rules without a new version of them."""
    path.write_text(path.read_text().replace("matmul.width", "matmul.breadth"))
    compiled = compile(model, TARGET, Options(records=open_tuned(path, TARGET)))
    report = tuning_report(compiled.tuning, len(compiled.rules))
    assert report["left_out"] == [{"reason": "no rule can do as was decided", "kernels": 1}] and not report["gains"]


def test_a_kernel_that_cannot_be_measured_is_left_out(model, caplog):
    with TARGET:
        (task,) = tasks_of(optimize(model), TARGET)
    answers = iter([ValueError("it fell"), 1.5])

    def seconds(task):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    told = []
    with caplog.at_level(logging.WARNING):
        assert measured([task, task], TARGET, lambda *done: told.append(done), seconds) == ([task], [1.5])
    assert told == [(1, 2), (2, 2)] and "is left out, as it cannot be run alone (it fell)" in caplog.text
    with pytest.raises(UserError, match="no kernel that can be run alone"):
        measured([], TARGET)
