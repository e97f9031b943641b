# SPDX-License-Identifier: Apache-2.0
"""Verdicts that are found in another process."""

import pytest
from tvm.s_tir import meta_schedule as ms

from smartmem_tvm.deploy import judge_in_worker
from smartmem_tvm.deploy.judge import Verdict
from smartmem_tvm.deploy.judge_in_worker import WorkerJudge
from smartmem_tvm.deploy.this_machine import ThisMachine, measuring_worker
from smartmem_tvm.errors import UserError
from smartmem_tvm.executor.faults import KILLED, MachineFailed
from smartmem_tvm.executor.job_devices import Executor
from smartmem_tvm.executor.workers import Answer
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.trace import schedule_of
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload
from tunable_kernels import CASES

TARGET = parse_target("llvm")


def judge_of(worker, compilers=None):
    return WorkerJudge(Executor(ThisMachine(TARGET), worker), compilers)


@pytest.fixture(scope="module")
def mod():
    return workload(with_constants(CASES["matmul with a weight"].func(), CASES["matmul with a weight"].constants))


def record_of(mod, seconds=1e-3):
    kernel = TunableKernel.of(mod["main"], TARGET)
    trace = schedule_of(mod, kernel.seed, kernel.space).trace
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod)
    return ms.database.TuningRecord(trace, ms.database.Workload(mod), [seconds], TARGET, arguments)


@pytest.mark.slow
def test_a_worker_measures_and_judges(mod):
    worker = measuring_worker()
    there = judge_of(worker)
    assert 0 < there.untuned_seconds(mod, TARGET) < 1
    first, second = there.judge(mod, TARGET, [record_of(mod), record_of(mod)])
    assert not first.wrong and 0 < first.seconds < 1 and first.untuned == second.untuned
    worker.close()


class Worker:
    """Answers by rules: the first one whose seconds are among those of the records asked about."""

    def __init__(self, untuned="", **rules):
        self.untuned, self.rules = untuned, rules

    def map(self, function, jobs, patience):
        ((_, _, *records),) = jobs
        if not records:
            return [Answer(1.0, self.untuned)]
        seconds = [fields[1][0] for _, fields in records[0]]
        error = next((rule for name, rule in self.rules.items() if float(name[1:]) in seconds), "")
        return [Answer([Verdict(each, 1.0) for each in seconds], error)]


def test_a_candidate_that_crashes_whoever_judges_it_is_wrong_and_the_others_are_judged(mod):
    worker = Worker(_2="The worker crashed (SIGSEGV).")
    records = [record_of(mod, seconds) for seconds in (1.0, 2.0, 3.0)]
    found = judge_of(worker).judge(mod, TARGET, records)
    assert found == [Verdict(1.0, 1.0), Verdict(None, None, "The worker crashed (SIGSEGV)."), Verdict(3.0, 1.0)]


@pytest.mark.parametrize("worker", [Worker(_2=f"The worker {KILLED} (SIGKILL)."), Worker(_2="slow", untuned="slow")])
def test_what_the_untuned_kernel_fails_at_too_is_no_fault_of_a_candidate(worker, mod):
    with pytest.raises(MachineFailed, match=r"killed|slow"):
        judge_of(worker).judge(mod, TARGET, [record_of(mod, 2.0)])


def test_an_untuned_kernel_that_cannot_be_run_is_told_from_a_machine_that_cannot(mod):
    with pytest.raises(RuntimeError, match="it fell"):
        judge_of(Worker(untuned="it fell")).untuned_seconds(mod, TARGET)
    with pytest.raises(UserError, match=r"could not be measured here .*; run the command again"):
        judge_of(Worker(untuned="No worker process could be started")).untuned_seconds(mod, TARGET)


class Compilers:
    """Compile here, and tell how much."""

    def __init__(self):
        self.asked = []

    def map(self, function, jobs, patience):
        self.asked.append(len(jobs))
        for job in jobs:
            function(job)


def test_finalists_are_compiled_ahead_with_the_untuned_kernel(mod, monkeypatch):
    compilers = Compilers()
    records = [record_of(mod, 1.0), record_of(mod, 2.0)]
    judge_of(Worker(), compilers).judge(mod, TARGET, records)
    assert not compilers.asked  # nothing would be left on disk
    monkeypatch.setattr(judge_in_worker, "keeps_binaries", lambda target: True)
    judge_of(Worker(), compilers).judge(mod, TARGET, records)
    assert compilers.asked == [3]
