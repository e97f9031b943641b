# SPDX-License-Identifier: Apache-2.0
"""Candidates with faults of every kind, in real builder and runner processes; and whose fault it is."""

from pathlib import Path

import pytest
from tvm.target import Target

import faulty_code
from smartmem_tvm.deploy.this_machine import ThisMachine, measuring_worker
from smartmem_tvm.executor.job_devices import Deadlines, Executor
from smartmem_tvm.tune.build_candidates import building_workers, local_builder
from smartmem_tvm.tune.candidate_faults import failure_of
from smartmem_tvm.tune.kernel_search import SearchSession, Tools
from smartmem_tvm.tune.measure_candidates import CandidateRunner
from smartmem_tvm.tune.records import Records, circumstances
from smartmem_tvm.tune.strategy import seconds_of
from smartmem_tvm.tune.trace import genome_of
from smartmem_tvm.tune.tunable_kernel import with_constants, workload
from tunable_kernels import CASES

TARGET = Target({"kind": "llvm", "num-cores": 3})  # `faulty_code` names numbers of tasks, multiples of the cores


@pytest.mark.parametrize(
    ("message", "candidate"),
    [
        ("The job took longer than 30 s.", True),
        ("The worker crashed (SIGSEGV).", True),
        ("MemoryError: ", True),
        ("InternalError: std::bad_alloc", True),
        ("OSError: [Errno 28] no space left on device: '/tmp/x'", False),
        ("The worker was killed from outside, as happens when memory runs out (SIGKILL).", False),
        ("No worker process could be started within 120 s.", False),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", False),
    ],
)
def test_failures_are_told_apart(message, candidate):
    assert failure_of(message).candidate == candidate


def test_the_reason_of_a_machine_is_short():
    assert failure_of("MemoryError: cannot allocate memory").reason == "Cannot allocate memory"


@pytest.mark.slow
def test_candidates_with_faults_cost_nobody_else_and_are_never_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("smartmem_tvm.tune.build_candidates._LEAST", faulty_code.ROOM)
    monkeypatch.setattr("smartmem_tvm.tune.build_candidates.memory_bytes", lambda: 0)
    mod = workload(with_constants(CASES["layer norm"].func(), ()))
    builder = local_builder(building_workers(2, patience=8), faulty_code.faulty_code)
    limits = Deadlines(candidate=9.0, question=9.0, verdict=9.0)
    runner = CandidateRunner(Executor(ThisMachine(TARGET, limits=limits), measuring_worker(memory=faulty_code.ROOM)))
    first = SearchSession(mod, TARGET, "genetic", Tools(builder, runner, _records(tmp_path)), trials=30, batch=8)
    while first.step():
        pass
    records = _records(tmp_path)
    times = {_key(record): seconds_of(record) for record in records.get_all_tuning_records()}
    wanted = {**faulty_code.MAKING, **faulty_code.RUNNING}
    (full,) = (key for key, how in wanted.items() if how == "finds the disk full")
    errors = [trial.error for trial in first.done if trial.seconds is None]
    failed = {key for key, seconds in times.items() if seconds is None}
    assert len(times) == 23 and failed == set(wanted) - {full}, errors
    for sign, count in (("crashed (SIGSEGV)", 2), ("took longer than 8 s", 1), ("took longer than 9 s", 1)):
        assert sum(sign in error for error in errors) == count, errors
    assert sum(not failure_of(error).candidate for error in errors) == len(first.done) - 23
    second = SearchSession(mod, TARGET, "genetic", Tools(builder, runner, records), trials=3, batch=8)
    while second.step():
        pass
    assert {trial.error for trial in second.done} == {"OSError: [Errno 28] No space left on device"}


def _records(folder: Path) -> Records:
    return Records(folder / "records.jsonl", circumstances(TARGET, 2), {"date": "", "command": ""})


def _key(record) -> tuple[int, int]:
    genome = genome_of(record.trace)
    return genome["rows.vectors"], genome["rows.tasks"]
