# SPDX-License-Identifier: Apache-2.0
"""How candidates are measured, by an executor's workers: on data that no kernel reads out of bounds with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tvm import ir
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerInput, RunnerResult

from ..executor.devices import Device, Devices, Executor
from ..executor.readings import CANDIDATE, kept, one_by_one
from ..executor.workers import Answer
from .parameters import arguments, read_parameters


def candidate_seconds(devices: Devices, artifact: str) -> list[float]:
    """Times of a candidate, ascending, from the file that was built."""
    file = Path(artifact)

    def measure(device: Device) -> list[float]:
        code = device.load(file)
        with device.running():
            tensors = arguments(read_parameters(file), device.device)
            return kept(one_by_one(device.clock(code, "main", [tensors]), CANDIDATE))

    return devices.run(measure, devices.limits.candidate)


@ir.utils.derived_object
class CandidateRunner(PyRunner):
    """MetaSchedule's runner: measures the candidates that it is given together when the first result is asked for."""

    def __init__(self, executor: Executor):
        super().__init__()
        self._executor = executor

    def run(self, runner_inputs: Sequence[RunnerInput]) -> list[PyRunnerFuture]:
        """One future for each candidate."""
        jobs = [str(each.artifact_path) for each in runner_inputs]
        answers: list[Answer] = []

        def answer(number: int) -> Answer:
            if not answers:
                answers.extend(self._executor.map(candidate_seconds, jobs, self._executor.devices.limits.candidate))
            return answers[number]

        return [_Time(partial(answer, number)) for number in range(len(jobs))]


@ir.utils.derived_object
class _Time(PyRunnerFuture):
    """The seconds of a candidate, or why there are none."""

    def __init__(self, ask: Callable[[], Answer]):
        super().__init__()
        self._ask, self._result = ask, None

    def done(self) -> bool:
        """Whether it has been measured."""
        return self._result is not None

    def result(self) -> RunnerResult:
        """Measure it, the first time."""
        if self._result is None:
            answer = self._ask()
            self._result = RunnerResult(answer.value, answer.error or None)
        return self._result
