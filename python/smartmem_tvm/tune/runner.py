# SPDX-License-Identifier: Apache-2.0
"""How candidates are measured, in a worker process: on data that no kernel reads out of bounds with."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, PyRunner, PyRunnerFuture, RunnerInput, RunnerResult
from tvm.s_tir.meta_schedule.runner.utils import run_evaluator_common

from .gpu_turn import gpu_turn
from .parameters import arguments, read_parameters
from .workers import Answer, Confines, Workers

# Many short readings, whose median is not that of a busy moment: milliseconds of each at least; how many, fewer of them
# where they would take more than so many seconds, or so many by a device's clock, which the host does not disturb.
_READING, _MOST, _FEWEST, _LONGEST, _LONGEST_BY_CLOCK = 1, 50, 3, 0.25, 0.1
Clock = Callable[[str, Callable[[], object]], float]
"""Takes the seconds of a launch on the device of a kind (`deploy.device_clock.device_seconds`)."""
Measure = Callable[[tuple[str, str]], list[float]]
"""Times of a candidate, ascending: of the file that was built and the kind of device. Runs in a worker."""
_KEPT = (0.1, 0.3, 0.5, 0.7, 0.9)


def measuring_worker(
    patience: float = 30.0, cores: Collection[int] = (), memory: int | None = None, gpu: bool = False
) -> Workers:
    """The one process that runs kernels; on $TVM_NUM_THREADS threads.

    Parameters
    ----------
    patience : float
        Seconds for one candidate.
    cores : collection of int
        The only CPU cores that it may run on; empty: as this process.
    memory : int, optional
        Bytes that it may have.
    gpu : bool
        Kernels run on a GPU, and no other process like this one measures there meanwhile.
    """
    return Workers(1, patience, Confines(cores, memory), [__name__], gpu_turn if gpu else nullcontext)


def local_runner(worker: Workers, clock: Clock | None = None) -> PyRunner:
    """A runner for candidates of any strategy.

    Parameters
    ----------
    worker : Workers
        `measuring_worker`.
    clock : callable, optional
        A function of a module, which the worker imports; by default TVM's, in whose readings is what the host does.
    """
    return runner(worker, partial(_seconds, clock))


def runner(workers: Workers, measure: Measure) -> PyRunner:
    """A runner that has candidates measured by workers, as many at a time as there are of them."""
    return _Runner(workers, measure)


@derived_object
class _Runner(PyRunner):
    """Measures the candidates that it is given together, when the first of their results is asked for."""

    def __init__(self, workers: Workers, measure: Measure):
        super().__init__()
        self._workers, self._measure = workers, measure

    def run(self, runner_inputs: Sequence[RunnerInput]) -> list[PyRunnerFuture]:
        """One future for each candidate."""
        jobs = [(str(each.artifact_path), str(each.device_type)) for each in runner_inputs]
        answers: list[Answer] = []

        def answer(number: int) -> Answer:
            if not answers:
                answers.extend(self._workers.map(self._measure, jobs))
            return answers[number]

        return [_Time(partial(answer, number)) for number in range(len(jobs))]


@derived_object
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


def _seconds(clock: Clock | None, job: tuple[str, str]) -> list[float]:
    """A `Measure` for a device of this machine."""
    artifact, kind = job
    module, device = tvm.runtime.load_module(artifact), tvm.runtime.device(kind, 0)
    tensors = arguments(read_parameters(Path(artifact)), device)
    once = EvaluatorConfig(number=1, repeat=1, min_repeat_ms=_READING)
    launch, readings = module["main"], []
    end = time.monotonic() + (_LONGEST if clock is None else _LONGEST_BY_CLOCK)
    while len(readings) < _FEWEST or (len(readings) < _MOST and time.monotonic() < end):
        if clock is not None:
            readings.append(clock(kind, lambda: launch(*tensors)))
        else:
            readings += run_evaluator_common(module, device, once, [tensors])
    return kept(readings)


def kept(readings: Sequence[float]) -> list[float]:
    """The readings that go on record: so many of all are not slower."""
    ordered = sorted(readings)
    return [ordered[int(len(ordered) * part)] for part in _KEPT]
