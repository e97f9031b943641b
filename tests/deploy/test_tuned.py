# SPDX-License-Identifier: Apache-2.0
"""A model compiled with the records of a file."""

import logging

import numpy as np
import pytest
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from helpers import constant, module
from smartmem_tvm.deploy import tuned
from smartmem_tvm.deploy.build import compile, optimize
from smartmem_tvm.deploy.target import parse_target
from smartmem_tvm.deploy.tuned import here, measured, open_tuned
from smartmem_tvm.errors import UserError
from smartmem_tvm.pipeline import Options
from smartmem_tvm.schedule.decisions import DECISIONS
from smartmem_tvm.tune.records import Records
from smartmem_tvm.tune.tasks import tasks_of
from smartmem_tvm.tune.trace import schedule_of

TARGET = parse_target("llvm")
WEIGHT = constant(40, 72)


@pytest.fixture
def model():
    return module(lambda x: relax.op.nn.relu(relax.op.matmul(x, WEIGHT)), (31, 40))


@pytest.fixture
def path(model, tmp_path):
    """Records with a winner for the one kernel of the model: panels of 24 columns."""
    with TARGET:
        (task,) = tasks_of(optimize(model), TARGET)
    records = Records(tmp_path / "records.jsonl", here(TARGET, 2), {"date": "", "command": ""})
    trace = schedule_of(task.mod, {**task.kernel.seed, "matmul.width": 24}, task.kernel.space).trace
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
    assert [int(each["matmul.width"]) for each in decided] == [24]
    assert not any(DECISIONS in (func.attrs or {}) for func in plain.functions.values())
    x = np.random.default_rng(0).standard_normal((31, 40)).astype("float32")
    for name, found in (("tuned", records), ("plain", None)):
        seen[name] = compile(model, TARGET, Options(records=found)).run(x)[0]
    np.testing.assert_allclose(seen["tuned"], np.maximum(x @ WEIGHT.value.numpy(), 0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(seen["tuned"], seen["plain"], rtol=1e-4, atol=1e-4)


def test_records_of_another_target_are_none(path):
    assert open_tuned(path, parse_target("cuda")) is None
    assert open_tuned(path, TARGET, threads=61) is not None


def test_a_kernel_that_cannot_be_measured_is_left_out(model, monkeypatch, caplog):
    with TARGET:
        (task,) = tasks_of(optimize(model), TARGET)
    answers = iter([ValueError("it fell"), 1.5])

    def seconds(mod, target):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(tuned, "untuned_seconds", seconds)
    told = []
    with caplog.at_level(logging.WARNING):
        assert measured([task, task], TARGET, lambda *done: told.append(done)) == ([task], [1.5])
    assert told == [(1, 2), (2, 2)] and "is left out, as it cannot be run alone (it fell)" in caplog.text
    with pytest.raises(UserError, match="no kernel that can be run alone"):
        measured([], TARGET)
