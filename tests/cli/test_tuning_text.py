# SPDX-License-Identifier: Apache-2.0
"""What commands say of tuned kernels."""

import json

import numpy as np
import pytest
from tvm.s_tir import meta_schedule as ms

from smartmem_tvm import from_onnx
from smartmem_tvm.cli.console import decisions_text, tuning_text
from smartmem_tvm.deploy.build import optimize
from smartmem_tvm.deploy.tuned import here
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.records import Records
from smartmem_tvm.tune.tasks import tasks_of
from smartmem_tvm.tune.trace import schedule_of

RUN = {"date": "2026-11-21", "command": "smartmem tune", "device": "a CPU", "driver": "", "strategy": "genetic"}
SAYS = "Tuned by strategy genetic: 1 (2026-11-21, a CPU, on 2 threads; "


@pytest.fixture
def records(model_path, tmp_path, monkeypatch):
    """A winner for the kernel of a model that takes most decisions, on as many threads as commands take now."""
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    target = parse_target("llvm")
    with target:
        tasks = tasks_of(optimize(from_onnx(model_path)), target)
    task = max((task for task in tasks if task.kernel), key=lambda task: len(task.kernel.seed))
    found = Records(tmp_path / "records.jsonl", here(target, 2), RUN)
    genome = task.kernel.space.random(np.random.default_rng(0))
    trace = schedule_of(task.mod, genome, task.kernel.space).trace
    arguments = ms.arg_info.ArgInfo.from_entry_func(task.mod)
    record = ms.database.TuningRecord(trace, found.commit_workload(task.mod), [1e-3], target, arguments)
    found.commit_tuning_record(record)
    found.commit_winner(record, 1e-3, 3e-3)
    return found.path, dict(genome)


def test_a_folder_says_what_it_was_compiled_with(smartmem, model_path, records, tmp_path):
    path, genome = records
    made = smartmem("compile", model_path, "-o", tmp_path / "out", "--records", path, "--json")
    report = made.data["manifest"]["tuning"]
    ((_, facts),) = report["gains"].items()
    assert facts == {
        "gain": pytest.approx(3),
        "seconds": 1e-3,
        "strategy": "genetic",
        "judge": None,
        "decisions": genome,
    }
    assert report["tuned"] == 1 < report["kernels"] == made.data["manifest"]["kernels"]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["tuning"] == report
    shown = smartmem("run", tmp_path / "out", "--threads", 2)
    assert f"1 of {report['kernels']} kernels are tuned: 3.00 times as fast" in shown.out and SAYS in shown.out
    assert smartmem("run", tmp_path / "out", "--json").data["tuning"] == report
    assert "None of" in smartmem("run", model_path, "--no-tuned").out


def test_explain_shows_decisions(smartmem, model_path, records):
    path, genome = records
    found = smartmem("explain", model_path, "--schedules", "--records", path, "--threads", 2, "--json").data
    (kernel,) = [each for each in found["kernels"] if each["tuned"] is not None]
    assert kernel["tuned"]["decisions"] == genome == found["tuning"]["gains"][kernel["kernel"]]["decisions"]
    shown = smartmem("explain", model_path, "--schedules", "--records", path, "--op", kernel["kernel"]).out
    words = " ".join(shown.split())
    assert "3.00x" in words and f"matmul: swapped {int(genome['matmul.swapped'])}, height" in words


def test_records_of_another_target_are_named(smartmem, model_path, records, tmp_path):
    result = smartmem("compile", model_path, "-o", tmp_path / "out", "--records", records[0], "--target", "opencl")
    assert "Records that do not count: of 1, found for target llvm" in result.out
    assert "None of" in result.out


def test_a_folder_of_an_older_version_says_nothing():
    assert tuning_text(None) == "Whether kernels are tuned is not on record."


def test_decisions_of_one_kind_stand_together():
    assert decisions_text(None) == "a schedule of TVM's"
    assert decisions_text({"matmul.rows": 4, "panel#1.width": 8, "matmul.unroll": 2}) == (
        "matmul: rows 4, unroll 2; panel#1: width 8"
    )
