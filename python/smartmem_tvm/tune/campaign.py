# SPDX-License-Identifier: Apache-2.0
"""Tune all kernels of some networks: choose the next kernel, decide when to stop, and select the winners.

A batch goes to the kernel with the largest expected gain: its share of the networks' time, times the average gain of
its last batches, with less weight for older ones. A kernel with almost no expected gain, or without trials left, is
finished. Its fastest candidates are then compared with the untuned kernel (`Judge`), and the fastest right one wins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..errors import UserError
from ..executor.faults import MachineFailed
from ..tvm_lock import one_at_a_time
from .candidate_faults import failure_of
from .kernel_run import KernelRun, kernel_runs
from .kernel_search import CandidateTrial, SearchSession, Tools
from .records import Records, record_key, workload_key
from .strategy import seconds_of
from .tasks import Task
from .trace import genome_of

_logger = logging.getLogger(__name__)
_FINALISTS = 3  # candidates of a kernel that are judged at the end: the fastest of many noisy times is partly luck
_VERDICT = 4.0  # seconds of a verdict, before one was timed
_ROUNDS = 4  # rounds of finalists, if all finalists of a round are wrong
_BROKEN = 2  # batches in a row without any fair result, after which tuning is given up


@dataclass(frozen=True)
class TuningEffort:
    """Limits of a campaign.

    Attributes
    ----------
    trials : int
        Most trials of each kernel, with those of earlier runs.
    worth : float
        Least expected gain of a batch, as a share of the kernel's time.
    batch : int
        Candidates that are built and measured together.
    minutes : float
        Minutes for the search and the verdicts.
    """

    trials: int
    worth: float
    batch: int
    minutes: float


EFFORTS = {
    "rapid": TuningEffort(trials=32, worth=0.02, batch=8, minutes=5.0),
    "normal": TuningEffort(trials=192, worth=0.005, batch=16, minutes=30.0),
    "exhaustive": TuningEffort(trials=1024, worth=0.001, batch=16, minutes=float("inf")),
}


Judge = Callable[[tvm.IRModule, Target, Sequence[ms.database.TuningRecord]], Sequence]
"""Verdicts on records of a kernel (`deploy.judge.judge`)."""


class Campaign:
    """The tuning of the kernels of one network, or of several.

    Parameters
    ----------
    tasks : sequence of Task
    untuned : sequence of float
        Untuned seconds of a launch of each task.
    target : tvm.target.Target
    strategy : str
        One of `metaschedule.STRATEGIES`.
    tools : Tools
        The tools; their database is a `Records`.
    judge : callable
    effort : Effort
    seed : int
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        untuned: Sequence[float],
        target: Target,
        strategy: str,
        tools: Tools,
        judge: Judge,
        effort: TuningEffort,
        seed: int = 0,
    ):
        self.target, self.strategy, self.tools, self.effort, self.seed = target, strategy, tools, effort, seed
        self._judge, self._sessions, self._broken, self._reason = judge, {}, 0, ""
        self._verdict_seconds = _VERDICT
        self.current: KernelRun | None = None
        self.kernels = kernel_runs(tasks, untuned)
        for kernel in self.kernels:
            self._recall(kernel)
        self.stopping, self.deadline = False, time.monotonic() + 60 * effort.minutes

    @property
    def records(self) -> Records:
        """The file of records."""
        return self.tools.database

    def _recall(self, kernel: KernelRun) -> None:
        """Load the results of earlier runs for a kernel."""
        key = workload_key(kernel.task.mod)
        for record in self.records.of(key):
            if (genome_of(record.trace) is not None) == (self.strategy == "genetic"):
                kernel.times.append(seconds_of(record))
        kernel.winner = self.records.winners.get(key)
        if kernel.task.kernel is None and self.strategy == "genetic":
            kernel.state = "nothing to decide"

    def run(self, show: Callable[[Campaign], None] = lambda _: None) -> None:
        """Tune until all kernels are finished, the time is up, or `stopping` is set; then judge the remaining kernels.

        Parameters
        ----------
        show : callable
            Called after each batch and each verdict.

        Raises
        ------
        UserError
            If the machine fails at every candidate, or the disk is full; all measurements are on record.
        """
        try:
            while (kernel := self._next()) is not None:
                self.current = kernel
                show(self)
                self._step(kernel)
        finally:
            for session in self._sessions.values():
                session.close()
        for kernel in self.kernels:
            self.current = kernel
            show(self)
            self._finish(kernel, "time is up" if not self.stopping else "stopped")
        if self._broken and not any(kernel.times for kernel in self.kernels) and not self.stopping:
            self._give_up()

    def _next(self) -> KernelRun | None:
        """Return the kernel with the largest expected gain, and finish those with almost none."""
        if self.stopping or time.monotonic() >= self._search_end():
            return None
        for kernel in self.kernels:
            enough = len(kernel.times) >= self.effort.trials
            if not kernel.state and (enough or kernel.promise(self.effort.batch) < self.effort.worth):
                self._finish(kernel, "all trials done" if enough else "no more gain")
        running = [kernel for kernel in self.kernels if not kernel.state]
        return max(running, key=self.expected, default=None)

    def _search_end(self) -> float:
        """Return the time at which the search must end to leave time for the verdicts."""
        verdicts = sum(kernel.tried > 0 and not kernel.state for kernel in self.kernels)
        return self.deadline - min(verdicts * self._verdict_seconds, 30 * self.effort.minutes)

    def expected(self, kernel: KernelRun) -> float:
        """Return the share of the network's time that one more batch of a kernel may save."""
        left = min(1.0, (kernel.best or kernel.untuned) / kernel.untuned)
        return kernel.share * left * kernel.promise(self.effort.batch)

    @one_at_a_time
    def _step(self, kernel: KernelRun) -> None:
        start = time.monotonic()
        try:
            trials = self._session(kernel).step()
        except UserError as error:
            if kernel.tried:
                raise
            _logger.warning("%s", error)
            kernel.state = f"not by {self.strategy}"
            return
        except Exception as error:  # TVM raises several kinds; one kernel must not stop the tuning of all others
            if not any(each.tried for each in self.kernels):
                raise
            reason = (str(error).strip().splitlines() or ["no message"])[-1]
            _logger.warning("Kernel %s is not tuned further, as %s raised %s.", kernel.name, self.strategy, reason)
            self._finish(kernel, "search failed")
            return
        finally:
            kernel.spent += time.monotonic() - start
        kernel.tried += len(trials)
        fair = [trial for trial in trials if trial.seconds is not None or failure_of(trial.error).candidate]
        kernel.times += [trial.seconds for trial in fair]
        kernel.machine_failed += len(trials) - len(fair)
        self._flush()
        if not trials:
            self._finish(kernel, "all candidates tried")
        self._note_broken(trials, fair)

    def _session(self, kernel: KernelRun) -> SearchSession:
        key = id(kernel)
        if key not in self._sessions:
            left, batch = self.effort.trials - len(kernel.times), self.effort.batch
            facts = (kernel.task.mod, self.target, self.strategy, self.tools, left, min(batch, left), self.seed)
            first = self.records.first_generation(
                workload_key(kernel.task.mod), min(batch, left), self.strategy == "genetic"
            )
            self._sessions[key] = SearchSession(*facts, kernel.name, first)
        return self._sessions[key]

    def _note_broken(self, trials: Sequence[CandidateTrial], fair: Sequence[CandidateTrial]) -> None:
        if not trials:  # the search of the kernel is over; this is no failure of the machine
            return
        self._broken, self._reason = (0, "") if fair else (self._broken + 1, trials[-1].error.strip().rstrip("."))
        if self._broken == _BROKEN:
            self._give_up()

    def _give_up(self) -> None:
        raise UserError(
            f"Tuning was given up, as no candidate could be measured ({self._reason}); all that was "
            f"measured before is on record: run the command again when that is mended."
        )

    def _flush(self) -> None:
        """Write the pending records; if that fails, stop measuring.

        Raises
        ------
        UserError
            If there is no room for the records.
        """
        try:
            self.records.flush()
        except UserError as error:
            path, reason = self.records.path, getattr(error.__cause__, "strerror", None) or error
            raise UserError(
                f"Tuning was given up, as {path.name} in folder {path.parent} cannot be written to ({reason}): it "
                f"keeps all that was measured but the last results (lines: {self.records.pending}); make room and run "
                f"the same command again, which measures those again and goes on."
            ) from error

    def _finish(self, kernel: KernelRun, why: str) -> None:
        """Judge a kernel's best candidates, unless it is finished already."""
        if kernel.state:
            return
        kernel.state = why
        try:
            self._choose(kernel)
        except MachineFailed as failure:
            _logger.warning(
                "The candidates of %s could not be judged (%s); run the command again.", kernel.name, failure
            )
            kernel.state = "not judged"
        self._flush()

    def _choose(self, kernel: KernelRun) -> None:
        for _ in range(_ROUNDS):
            finalists = self._finalists(kernel)
            if not finalists:
                return
            start = time.monotonic()
            verdicts = self._judge(kernel.task.mod, self.target, finalists)
            self._verdict_seconds = (self._verdict_seconds + time.monotonic() - start) / 2
            for record, verdict in zip(finalists, verdicts, strict=True):
                if verdict.wrong:
                    self.records.commit_wrong(record, verdict.wrong)
                    kernel.wrong += 1
            right = [pair for pair in zip(finalists, verdicts, strict=True) if not pair[1].wrong]
            if right:
                record, verdict = min(right, key=lambda pair: pair[1].seconds)
                self.records.commit_winner(record, verdict.seconds, verdict.untuned)
                kernel.winner = self.records.winners[workload_key(kernel.task.mod)]
                return

    def _finalists(self, kernel: KernelRun) -> list[ms.database.TuningRecord]:
        """Return the fastest records that were not judged wrong; none if the workload is settled."""
        workload = workload_key(kernel.task.mod)
        if self.records.is_settled(workload):
            return []
        keys = {record_key(each): each for each in self.records.of(workload) if seconds_of(each) is not None}
        right = [key for key in sorted(keys, key=lambda key: seconds_of(keys[key])) if key not in self.records.wrong]
        earlier = [kernel.winner["winner"]] if kernel.winner and kernel.winner["winner"] in right[_FINALISTS:] else []
        return [keys[key] for key in (*right[:_FINALISTS], *earlier)]
