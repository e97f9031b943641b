# SPDX-License-Identifier: Apache-2.0
"""Candidates of `smartmem tune --judge mesa`: what takes the place of a device that builds, runs and judges kernels.

A worker schedules a candidate, writes its OpenCL and models its accesses; Mesa compiles those of a batch, in as many
processes as this machine has cores, and `price` makes seconds of both. Nothing runs, so outputs are not compared.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import ir
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerInput, RunnerResult
from tvm.target import Target

from ...analysis.kernel_time import EFFORT, memory_parts
from ...analysis.memory_access import kernel_accesses
from ...deploy.judge import Verdict
from ...deploy.kernel_code import kernel_code
from ...executor.faults import NO_DEVICE
from ...executor.workers import Answer, Workers
from ...mesa_folder import mesa_version
from ...target import named_device
from ...tune.build_candidates import finished
from ...tune.records import workload_key
from ...tune.strategy import seconds_of
from ...tune.tunable_kernel import scheduled
from .compiler import ENDED, Compiled, compile_all, gpu_of
from .kernels import kernel_codes
from .price import seconds
from .sources import programs

PRICES = 1
"""Version of `price`: prices of different versions, or of different versions of Mesa, are not compared."""
_UNKNOWN = "The trips of a loop are not read off the machine code."


def judge_name() -> str:
    """Return the name of this judge in records."""
    return f"Mesa {mesa_version()}, prices {PRICES}"


@dataclass(frozen=True)
class Modelled:
    """A candidate to be priced: its OpenCL programs by kernel, and the seconds of its parts of memory."""

    sources: Mapping[str, str]
    memory: Sequence[float]


def modelled(mod: tvm.IRModule, target: Target) -> Modelled:
    """Generate the OpenCL of a scheduled kernel, and model its accesses; for `build_candidates.local_builder`.

    Raises
    ------
    Unmodelled
        If its accesses depend on data.
    """
    (func,) = mod.functions.values()
    row = named_device(target)
    memory = memory_parts(kernel_accesses(func, row, EFFORT), row)
    return Modelled(programs(kernel_code(mod, target)), memory)


def write(made: Modelled, target: Target) -> str:
    """Write a candidate into a new folder, and return the file; for `build_candidates.local_builder`."""
    file = Path(tempfile.mkdtemp()) / "candidate.json"
    file.write_text(json.dumps({"sources": made.sources, "memory": made.memory}), encoding="utf-8")
    return str(file)


class Prices:
    """Prices candidates for an Adreno.

    Parameters
    ----------
    target : Target
        It names the Adreno.
    processes : int
        Processes of Mesa at a time.
    compiling : callable, optional
        `compiler.compile_all`.
    """

    def __init__(self, target: Target, processes: int, compiling: Callable = compile_all):
        self.row, self.processes, self._compile = named_device(target), processes, compiling

    def of(self, candidates: Sequence[Modelled]) -> list[Answer]:
        """Return the seconds of each candidate, or why it has none; equal kernels are compiled once."""
        distinct = dict.fromkeys(source for each in candidates for source in each.sources.values())
        named, gpu = {str(number): source for number, source in enumerate(distinct)}, gpu_of(self.row)
        names = list(named)
        parts = [names[start :: self.processes] for start in range(self.processes)]
        compiled = {}
        with ThreadPoolExecutor(self.processes) as pool:
            work = [{name: named[name] for name in part} for part in parts if part]
            for made in pool.map(lambda part: self._compile(part, gpu), work):
                compiled |= {named[name]: each for name, each in made.items()}
        return [self._answer(each, compiled) for each in candidates]

    def _answer(self, candidate: Modelled, compiled: Mapping[str, Compiled]) -> Answer:
        mine = {name: compiled[source] for name, source in candidate.sources.items()}
        refused = next((each.refused for each in mine.values() if each.refused), "")
        if refused == ENDED:  # for lack of memory, or a signal: no fault of the candidate
            return Answer(error=f"{NO_DEVICE}: {ENDED}.")
        if refused:
            return Answer(error=f"Mesa refuses the kernel: {refused}.")
        price = seconds(list(kernel_codes(candidate.sources, mine).values()), candidate.memory, self.row)
        return Answer(price) if price is not None else Answer(error=_UNKNOWN)


@ir.utils.derived_object
class ModelRunner(PyRunner):
    """MetaSchedule's runner, which prices the candidates of a batch together."""

    def __init__(self, prices: Prices):
        super().__init__()
        self._prices = prices

    def run(self, runner_inputs: Sequence[RunnerInput]) -> list[PyRunnerFuture]:
        """Return one future for each candidate, already done."""
        files = (Path(str(each.artifact_path)) for each in runner_inputs)
        made = [Modelled(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
        return [_Price(RunnerResult(a.value and [a.value], a.error or None)) for a in self._prices.of(made)]


@ir.utils.derived_object
class _Price(PyRunnerFuture):
    def __init__(self, result: RunnerResult):
        super().__init__()
        self._result = result

    def done(self) -> bool:
        """Whether there is a result."""
        return True

    def result(self) -> RunnerResult:
        """Return the price, or the error."""
        return self._result


class ModelJudge:
    """Judges finalists by their prices, which are the same each time, and knows those of the untuned kernels.

    Parameters
    ----------
    prices : Prices
    workers : Workers
        `build_candidates.building_workers`.
    """

    def __init__(self, prices: Prices, workers: Workers):
        self._prices, self._workers = prices, workers
        self._untuned: dict[str, Answer] = {}

    def learn(self, kernels: Sequence[tvm.IRModule], target: Target) -> None:
        """Price untuned kernels, all together."""
        made = self._workers.map(untuned, [(mod, target) for mod in kernels])
        good = [each.value for each in made if not each.error]
        prices = iter(self._prices.of(good) if good else ())
        for mod, each in zip(kernels, made, strict=True):
            self._untuned[workload_key(mod)] = each if each.error else next(prices)

    def untuned_seconds(self, mod: tvm.IRModule, target: Target) -> float:
        """Return the price of an untuned kernel.

        Raises
        ------
        RuntimeError
            If it has none.
        UserError
            If the machine failed.
        """
        return self._untuned[workload_key(mod)].result()

    def judge(self, mod: tvm.IRModule, target: Target, records: Sequence[ms.database.TuningRecord]) -> list[Verdict]:
        """See `deploy.judge.judge`; outputs are not compared."""
        return [Verdict(seconds_of(each), self.untuned_seconds(mod, target)) for each in records]


def untuned(job: tuple[tvm.IRModule, Target]) -> Modelled:
    """Schedule a kernel as it is without tuning, in a worker.

    Raises
    ------
    UserError, ScheduleError, Unmodelled
        If it cannot be scheduled, or its accesses depend on data.
    """
    mod, target = job
    return finished(scheduled(mod["main"], target), target, modelled).module
