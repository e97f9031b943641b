# SPDX-License-Identifier: Apache-2.0
"""Measure candidates in an executor's workers, on data whose indices stay in bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tvm import ir
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerInput, RunnerResult

from ..executor.job_devices import Device, Devices, Executor
from ..executor.readings import CANDIDATE, kept, one_by_one
from ..executor.workers import Answer
from .parameters import arguments, read_parameters


def candidate_seconds(devices: Devices, artifact: str) -> list[float]:
    """Return the ascending times of a candidate, in seconds, given its built file."""
    file = Path(artifact)

    def measure(device: Device) -> list[float]:
        code = device.load(file)
        with device.running():
            tensors = arguments(read_parameters(file), device.device)
            return kept(one_by_one(device.clock(code, "main", [tensors]), CANDIDATE))

    return devices.run(measure, devices.limits.candidate)


@ir.utils.derived_object
class CandidateRunner(PyRunner):
    """MetaSchedule's runner: it measures the candidates of a batch together, when the first result is needed."""

    def __init__(self, executor: Executor):
        super().__init__()
        self._executor = executor

    def run(self, runner_inputs: Sequence[RunnerInput]) -> list[PyRunnerFuture]:
        """Return one future for each candidate."""
        jobs = [str(each.artifact_path) for each in runner_inputs]
        answers: list[Answer] = []

        def answer(number: int) -> Answer:
            if not answers:
                answers.extend(self._executor.map(candidate_seconds, jobs, self._executor.devices.limits.candidate))
            return answers[number]

        return [_Time(partial(answer, number)) for number in range(len(jobs))]


@ir.utils.derived_object
class _Time(PyRunnerFuture):
    """The future of a candidate's times, or of its error."""

    def __init__(self, ask: Callable[[], Answer]):
        super().__init__()
        self._ask, self._result = ask, None

    def done(self) -> bool:
        """Whether the candidate has been measured."""
        return self._result is not None

    def result(self) -> RunnerResult:
        """Return the result; the first call measures."""
        if self._result is None:
            answer = self._ask()
            self._result = RunnerResult(answer.value, answer.error or None)
        return self._result
