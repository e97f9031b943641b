# SPDX-License-Identifier: Apache-2.0
"""Tune one kernel, batch by batch: candidates, builds, times, records.

MetaSchedule's own loop over tasks does the same in one call; here the caller chooses the next kernel after each batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tvm
import tvm_ffi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from ..errors import UserError
from ..target import device_kind
from .candidate_faults import failure_of
from .metaschedule import context
from .parameters import FILE
from .strategy import FAILED, median_of, seconds_of
from .trace import genome_of

_NEVER = 10 * FAILED  # seconds that MetaSchedule writes for a failed candidate


@dataclass(frozen=True)
class CandidateTrial:
    """A tried candidate: its seconds, or its error."""

    seconds: float | None
    error: str = ""


@dataclass(frozen=True)
class Tools:
    """The tools that all sessions share: MetaSchedule's builder, runner, database and cost model.

    Attributes
    ----------
    devices : int
        Number of candidates that the runner measures at a time.
    """

    builder: ms.Builder
    runner: ms.Runner
    database: ms.Database
    model: ms.CostModel | None = None
    devices: int = 1


class SearchSession:
    """The tuning of one kernel by one strategy.

    Parameters
    ----------
    mod : tvm.IRModule
        `tasks.Task.mod`.
    target : tvm.target.Target
    strategy : str
        One of `metaschedule.STRATEGIES`.
    tools : Tools
        The tools, with a cost model for this strategy (`metaschedule.cost_model`).
    trials, batch : int
        Most candidates, and candidates of each step.
    seed : int
    name : str
        Name of the kernel in messages.
    first : sequence of TuningRecord
        Candidates to try before the strategy starts, which then knows their times; at most `trials`.

    Raises
    ------
    UserError
        If the strategy does not exist, or cannot tune this kernel.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        target: Target,
        strategy: str,
        tools: Tools,
        trials: int,
        batch: int = 16,
        seed: int = 0,
        name: str = "main",
        first: Sequence[ms.database.TuningRecord] = (),
    ):
        self.tools, self.done, self._first = tools, [], list(first)
        self.context = context(mod, target, strategy, seed, name)
        try:
            spaces = self.context.generate_design_space()
        except (ScheduleError, tvm.error.InternalError) as error:
            raise UserError(
                f"Kernel {name} cannot be tuned by strategy {strategy}: TVM's rules fail at it; use strategy genetic."
            ) from error
        left = trials - len(self._first)
        self._begin, self._open = partial(self.context.pre_tuning, left, batch, spaces), left > 0
        if not self._first:
            self._start()

    def _start(self) -> None:
        """Start the strategy with all records so far, unless the first candidates were all."""
        self._first = []
        if self._open:
            self._begin(self.tools.database, self.tools.model)

    @property
    def best(self) -> float | None:
        """Seconds of the fastest candidate of this session."""
        return min((trial.seconds for trial in self.done if trial.seconds is not None), default=None)

    def step(self) -> list[CandidateTrial]:
        """Try one batch, and record its times; the result is empty if there is nothing left to try.

        The first batch are the candidates to try first, if there are any.
        """
        given = [_as_measured(each)[0] for each in self._first]
        candidates = given or (self.context.generate_measure_candidates() if self._open else None)
        if not candidates:
            self.close()
            return []
        kept = self.tools.database.commit_workload(self.context.mod)
        results = []
        for candidate, result in zip(candidates, self._measured(candidates), strict=True):
            self._record(candidate, result, kept)
            results.append(result)
        if given:
            self._start()
        else:
            self.context.notify_runner_results(candidates, results)
        if self.tools.model is not None:
            self.tools.model.update(self.context, candidates, results)
        trials = [CandidateTrial(median_of(result.run_secs), str(result.error_msg or "")) for result in results]
        self.done += trials
        return trials

    def close(self) -> None:
        """End the session; further calls have no effect."""
        if self._open:
            self.context.post_tuning()
        self._open = False

    def _measured(self, candidates: Sequence[ms.MeasureCandidate]) -> Iterator[ms.runner.RunnerResult]:
        """Yield the result of each candidate as soon as it is available."""
        device = device_kind(self.context.target)
        built = self.tools.builder.build([ms.builder.BuilderInput(c.sch.mod, self.context.target) for c in candidates])
        pairs = list(zip(candidates, built, strict=True))
        for first in range(0, len(pairs), self.tools.devices):
            yield from self._run(pairs[first : first + self.tools.devices], device)

    def _run(self, pairs: Sequence[tuple], device: str) -> Iterator[ms.runner.RunnerResult]:
        """Yield the results of some candidates that are measured together."""
        jobs = [
            ms.runner.RunnerInput(build.artifact_path, device, candidate.args_info)
            for candidate, build in pairs
            if build.error_msg is None
        ]
        times = iter(self.tools.runner.run(jobs) if jobs else ())
        for _, build in pairs:
            if build.error_msg is not None:
                yield ms.runner.RunnerResult(None, build.error_msg)
            else:
                yield next(times).result()
                _discard(Path(str(build.artifact_path)))

    def _record(self, candidate: ms.MeasureCandidate, result: ms.runner.RunnerResult, kept: ms.database.Workload):
        """Record a time, or a candidate that failed by its own fault; failures of the machine are not recorded."""
        seconds = list(result.run_secs or ())
        if seconds or failure_of(str(result.error_msg)).candidate:
            record = (candidate.sch.trace, kept, seconds or [_NEVER], self.context.target, candidate.args_info)
            self.tools.database.commit_tuning_record(ms.database.TuningRecord(*record))


def _discard(artifact: Path) -> None:
    """Remove a built artifact, and its folder if it is then empty."""
    with suppress(OSError):
        for file in (artifact, artifact.with_name(FILE)):
            file.unlink(missing_ok=True)
        artifact.parent.rmdir()


def learn(model: ms.CostModel, database: ms.Database, target: Target, strategy: str) -> int:
    """Train a cost model on earlier measurements for a target, in the space of a strategy.

    Returns
    -------
    int
        Number of records used.
    """
    groups: dict[int, list] = {}
    for record in database.get_all_tuning_records():
        ours = genome_of(record.trace) is not None
        if ours == (strategy == "genetic") and tvm_ffi.structural_equal(record.target, target):
            groups.setdefault(tvm_ffi.structural_hash(record.workload.mod), []).append(record)
    for records in groups.values():
        mod = records[0].workload.mod
        candidates, results = zip(*map(_as_measured, records), strict=True)
        model.update(context(mod, target, strategy, 0), list(candidates), list(results))
    return sum(map(len, groups.values()))


def _as_measured(record: ms.database.TuningRecord) -> tuple[ms.MeasureCandidate, ms.runner.RunnerResult]:
    schedule = tvm.s_tir.Schedule(record.workload.mod)
    record.trace.apply_to_schedule(schedule, remove_postproc=False)
    seconds = seconds_of(record)
    result = ms.runner.RunnerResult(None if seconds is None else [seconds], "failed" if seconds is None else None)
    return ms.MeasureCandidate(schedule, record.args_info or []), result
