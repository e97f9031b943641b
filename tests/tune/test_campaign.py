# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is, when it is enough, and what counts, with builds that are numbers."""

import zlib
from dataclasses import dataclass

import pytest
from tvm.s_tir import meta_schedule as ms

from smartmem_tvm.deploy.target import parse_target
from smartmem_tvm.errors import UserError
from smartmem_tvm.tune import campaign as campaign_module
from smartmem_tvm.tune.campaign import Campaign, Effort, KernelRun
from smartmem_tvm.tune.kernel import TunableKernel, with_constants, workload
from smartmem_tvm.tune.records import Records, circumstances, record_key
from smartmem_tvm.tune.session import Tools
from smartmem_tvm.tune.strategy import seconds_of
from smartmem_tvm.tune.tasks import Task
from tunable_kernels import CASES

TARGET = parse_target("llvm")
EFFORT = Effort(trials=12, worth=1e-9, batch=4, minutes=float("inf"))


def task(name, launches=1):
    func = with_constants(CASES[name].func(), CASES[name].constants)
    return Task((name,), workload(func), TunableKernel.of(func, TARGET), launches)


class Builder(ms.builder.PyBuilder):
    def __init__(self, folder, error=None):
        self.folder, self.error, self.count = folder, error, 0

    def build(self, inputs):
        found = []
        for _ in inputs:
            self.count += 1
            artifact = self.folder / f"built{self.count}" / str(self.count)
            artifact.parent.mkdir(parents=True)
            found.append(ms.builder.BuilderResult(None if self.error else str(artifact), self.error))
        return found


class Runner:
    def run(self, inputs):
        return [_Answer(zlib.crc32(each.artifact_path.encode()) % 1000 * 1e-6 + 1e-6) for each in inputs]


class _Answer:
    def __init__(self, seconds):
        self._result = ms.runner.RunnerResult([seconds], None)

    def result(self):
        return self._result


@dataclass
class Verdict:
    seconds: float | None
    untuned: float | None
    wrong: str = ""


def right(mod, target, records):
    return [Verdict(seconds_of(each), 1e-3) for each in records]


def campaign(folder, names=("matmul",), judge=right, effort=EFFORT, error=None, untuned=None, run=None):
    records = Records(folder / "records.jsonl", circumstances(TARGET, 2), {"date": "", "command": ""})
    tools = Tools(Builder(folder / str(run or id(records)), error), Runner(), records)
    tasks = [task(name) for name in names]
    return Campaign(tasks, untuned or [1e-3] * len(tasks), TARGET, "genetic", tools, judge, effort)


def test_all_trials_are_done_and_the_fastest_right_candidate_wins(tmp_path):
    tuned = campaign(tmp_path, ("matmul", "layer norm"))
    tuned.run()
    for kernel in tuned.kernels:
        assert len(kernel.times) == kernel.tried == 12 and kernel.state == "all trials done"
        assert kernel.winner["seconds"] == kernel.best and kernel.gain == pytest.approx(1e-3 / kernel.best)


def test_a_second_run_has_nothing_to_do_and_one_with_more_trials_goes_on(tmp_path):
    campaign(tmp_path).run()
    judged = []
    again = campaign(tmp_path, judge=lambda *asked: judged.append(asked))
    again.run()
    assert again.kernels[0].tried == 0 and len(again.kernels[0].times) == 12 and not judged
    assert again.kernels[0].gain > 1
    more = campaign(tmp_path, effort=Effort(20, 1e-9, 4, float("inf")))
    more.run()
    assert more.kernels[0].tried == 8 and len(more.kernels[0].times) == 20


def test_an_interrupted_run_keeps_and_judges_what_it_has(tmp_path):
    first = campaign(tmp_path, ("matmul", "layer norm"))
    turns = []

    def stop(state):
        turns.append(state.current.name)
        state.stopping = True

    first.run(stop)
    assert [kernel.tried for kernel in first.kernels] == [4, 0]
    assert [kernel.state for kernel in first.kernels] == ["stopped", "stopped"] and first.kernels[0].winner
    second = campaign(tmp_path, ("matmul", "layer norm"))
    assert [len(kernel.times) for kernel in second.kernels] == [4, 0]
    second.run()
    assert [kernel.tried for kernel in second.kernels] == [8, 12]


def test_wrong_candidates_are_quarantined_and_the_next_ones_judged(tmp_path):
    asked = []

    def judge(mod, target, records):
        asked.append([record_key(each) for each in records])
        if len(asked) == 1:
            return [Verdict(None, None, "output 0 differs") for _ in records]
        return right(mod, target, records)

    tuned = campaign(tmp_path, judge=judge)
    tuned.run()
    (kernel,) = tuned.kernels
    assert kernel.wrong == 3 and tuned.records.wrong == set(asked[0])
    assert kernel.winner["winner"] in asked[1] and not set(asked[0]) & set(asked[1])
    again = campaign(tmp_path)
    assert again.kernels[0].times.count(None) == 3  # known as failures now


def test_where_all_are_wrong_nothing_wins(tmp_path):
    tuned = campaign(tmp_path, judge=lambda mod, target, records: [Verdict(None, None, "differs") for _ in records])
    tuned.run()
    assert tuned.kernels[0].winner is None and tuned.kernels[0].gain == 1 and tuned.kernels[0].wrong == 12


def test_a_winner_that_is_not_faster_gains_nothing(tmp_path):
    tuned = campaign(tmp_path, judge=lambda mod, target, records: [Verdict(2e-3, 1e-3) for _ in records])
    tuned.run()
    assert tuned.kernels[0].gain == 1


def test_a_machine_that_fails_at_everything_ends_it(tmp_path):
    tuned = campaign(tmp_path, error="OSError: [Errno 28] No space left on device")
    with pytest.raises(UserError, match=r"fails at every candidate \(No space left on device\); all that was measured"):
        tuned.run()
    assert tuned.kernels[0].machine_failed == 8 and tuned.kernels[0].times == [] and not tuned.records.path.exists()


def test_candidates_that_fail_are_no_fault_of_the_machine(tmp_path):
    tuned = campaign(tmp_path, error="the compiler crashed")
    tuned.run()
    assert tuned.kernels[0].times == [None] * 12 and tuned.kernels[0].winner is None


def test_when_the_time_is_up_nothing_begins(tmp_path):
    tuned = campaign(tmp_path, effort=Effort(12, 1e-9, 4, 0.0))
    tuned.run()
    assert tuned.kernels[0].tried == 0 and tuned.kernels[0].state == "time is up"


def test_the_next_turn_is_of_the_kernel_with_the_most_to_gain(tmp_path):
    tuned = campaign(tmp_path, ("matmul", "layer norm", "transpose"), untuned=[1e-4, 5e-4, 4e-4])
    assert [kernel.name for kernel in tuned.kernels] == ["layer norm", "transpose", "matmul"]
    assert [kernel.share for kernel in tuned.kernels] == pytest.approx([0.5, 0.4, 0.1])
    turns = []
    tuned.run(lambda state: turns.append(state.current.name))
    assert turns[:2] == ["layer norm", "transpose"]


def test_what_a_kernel_promises_fades_with_batches_that_gain_nothing():
    kernel = KernelRun(None, 1.0)
    fresh = kernel.promise(2)
    kernel.times = [1.0, 2.0]
    idle = kernel.promise(2)
    kernel.times = [1.0, 2.0, 0.5, None]
    gained = kernel.promise(2)
    kernel.times = [1.0, 2.0, 0.5, None] + [3.0, None] * 6
    assert fresh > idle > 0 and gained > idle and kernel.promise(2) < 0.01


def test_a_kernel_that_promises_nothing_is_finished_early(tmp_path):
    tuned = campaign(tmp_path, effort=Effort(1000, 0.02, 4, float("inf")))
    tuned.run()
    (kernel,) = tuned.kernels
    assert kernel.state == "no more gain" and kernel.tried < 200 and kernel.winner is not None


def test_a_kernel_that_the_strategy_cannot_tune_is_named_and_the_others_are_tuned(tmp_path, monkeypatch, caplog):
    session = campaign_module.Session

    def refusing(mod, target, strategy, tools, trials, batch, seed, name):
        if name == "matmul":
            raise UserError("Kernel matmul cannot be tuned by strategy genetic.")
        return session(mod, target, strategy, tools, trials, batch, seed, name)

    monkeypatch.setattr(campaign_module, "Session", refusing)
    tuned = campaign(tmp_path, ("matmul", "layer norm"))
    tuned.run()
    assert {kernel.name: (kernel.state, kernel.tried) for kernel in tuned.kernels} == {
        "matmul": ("not by genetic", 0),
        "layer norm": ("all trials done", 12),
    }
    assert "Kernel matmul cannot be tuned" in caplog.text
