# SPDX-License-Identifier: Apache-2.0
"""The tuning of all kernels of a network: whose turn it is, when it is enough, and what counts in the end.

A batch goes to the kernel that promises the most: its share of the network's time, times what its last batches have
gained on average (the older, the less). A kernel that promises next to nothing, or has had its trials, is finished; its
fastest candidates are then compared with the untuned kernel (`Judge`), and the fastest right one wins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..errors import UserError
from .faults import failure_of
from .record_lines import is_faster
from .records import Records, record_key, workload_key
from .session import Session, Tools, Trial
from .strategy import seconds_of
from .tasks import Task
from .trace import genome_of

_logger = logging.getLogger(__name__)
_HOPE = 0.2  # what a kernel may gain in its first batch, before anything is known
_FINALISTS = 3  # of each kernel are measured in turns at the end: the fastest of many noisy times is partly luck
_ROUNDS = 4  # of finalists, if all of them were wrong
_BROKEN = 2  # batches in which the machine failed at everything


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes
    ----------
    trials : int
        Of each kernel, those of earlier runs included.
    worth : float
        Share of a kernel's time that a batch has to promise.
    batch : int
        Candidates that are built and measured together.
    minutes : float
        After which nothing new begins.
    """

    trials: int
    worth: float
    batch: int
    minutes: float


EFFORTS = {
    "rapid": Effort(trials=32, worth=0.02, batch=8, minutes=5.0),
    "normal": Effort(trials=192, worth=0.005, batch=16, minutes=30.0),
    "exhaustive": Effort(trials=1024, worth=0.001, batch=16, minutes=float("inf")),
}


@dataclass
class KernelRun:
    """What is known of one kernel while it is tuned.

    Attributes
    ----------
    task : Task
    untuned : float
        Seconds of one launch without tuning.
    share : float
        Of the network's time, untuned.
    times : list
        Seconds of each candidate tried, earlier runs included; None for those that failed.
    machine_failed : int
        Candidates that the machine had no room for.
    spent : float
        Seconds of this run that went to it, on `tried` candidates.
    state : str
        Why it is not tuned further: ``done``, ``nothing to decide`` ...; empty while it is.
    winner : dict or None
        The line of the records on it: ``seconds``, ``untuned``.
    wrong : int
        Finalists that computed something else.
    """

    task: Task
    untuned: float
    share: float = 0.0
    times: list[float | None] = field(default_factory=list)
    tried: int = 0
    machine_failed: int = 0
    spent: float = 0.0
    state: str = ""
    winner: dict | None = None
    wrong: int = 0

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.task.names[0]

    @property
    def best(self) -> float | None:
        """Seconds of the fastest candidate."""
        return min((each for each in self.times if each is not None), default=None)

    @property
    def gain(self) -> float:
        """How many times faster it is, as measured in turns with the untuned kernel."""
        return self.winner["untuned"] / self.winner["seconds"] if self.winner and is_faster(self.winner) else 1.0

    def promise(self, batch: int) -> float:
        """The share of its time that one more batch may save."""
        promise, best = _HOPE, None
        for start in range(0, len(self.times), batch):
            found = [each for each in self.times[start : start + batch] if each is not None]
            now = min([*found, *([best] if best is not None else [])], default=None)
            gained = 1 - now / best if best is not None and now is not None else 0.0
            promise, best = (promise + gained) / 2, now
        return promise


Judge = Callable[[tvm.IRModule, Target, Sequence[ms.database.TuningRecord]], Sequence]
"""Verdicts on records of a kernel (`deploy.judge.judge`)."""


class Campaign:
    """The tuning of the kernels of one network.

    Parameters
    ----------
    tasks : sequence of Task
    untuned : sequence of float
        Seconds of a launch of each.
    target : tvm.target.Target
    strategy : str
        One of `metaschedule.STRATEGIES`.
    tools : Tools
        Its database is a `Records`.
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
        effort: Effort,
        seed: int = 0,
    ):
        self.target, self.strategy, self.tools, self.effort, self.seed = target, strategy, tools, effort, seed
        self._judge, self._sessions, self._broken = judge, {}, 0
        self.current: KernelRun | None = None
        total = sum(task.launches * each for task, each in zip(tasks, untuned, strict=True))
        self.kernels = [
            KernelRun(task, each, task.launches * each / total) for task, each in zip(tasks, untuned, strict=True)
        ]
        self.kernels.sort(key=lambda kernel: -kernel.share)
        for kernel in self.kernels:
            self._recall(kernel)
        self.stopping, self.deadline = False, time.monotonic() + 60 * effort.minutes

    @property
    def records(self) -> Records:
        """Where everything is kept."""
        return self.tools.database

    def _recall(self, kernel: KernelRun) -> None:
        """What earlier runs have found."""
        key = workload_key(kernel.task.mod)
        for record in self._of(kernel):
            if (genome_of(record.trace) is not None) == (self.strategy == "genetic"):
                kernel.times.append(seconds_of(record))
        kernel.winner = self.records.winners.get(key)
        if kernel.task.kernel is None and self.strategy == "genetic":
            kernel.state = "nothing to decide"

    def _of(self, kernel: KernelRun) -> list[ms.database.TuningRecord]:
        key = workload_key(kernel.task.mod)
        return [each for each in self.records.get_all_tuning_records() if workload_key(each.workload.mod) == key]

    def run(self, show: Callable[[Campaign], None] = lambda _: None) -> None:
        """Tune until everything is finished, the time is up, or `stopping` is set; then judge what is left to judge.

        Parameters
        ----------
        show : callable
            Is called after each batch and each verdict.

        Raises
        ------
        UserError
            If the machine fails at everything; what was measured is on record.
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

    def _next(self) -> KernelRun | None:
        """Who promises the most; those who promise nothing are finished on the way."""
        if self.stopping or time.monotonic() >= self.deadline:
            return None
        for kernel in self.kernels:
            enough = len(kernel.times) >= self.effort.trials
            if not kernel.state and (enough or kernel.promise(self.effort.batch) < self.effort.worth):
                self._finish(kernel, "all trials done" if enough else "no more gain")
        running = [kernel for kernel in self.kernels if not kernel.state]
        return max(running, key=self.expected, default=None)

    def expected(self, kernel: KernelRun) -> float:
        """The share of the network's time that one more batch of a kernel may save."""
        left = min(1.0, (kernel.best or kernel.untuned) / kernel.untuned)
        return kernel.share * left * kernel.promise(self.effort.batch)

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
        finally:
            kernel.spent += time.monotonic() - start
        kernel.tried += len(trials)
        fair = [trial for trial in trials if trial.seconds is not None or failure_of(trial.error).candidate]
        kernel.times += [trial.seconds for trial in fair]
        kernel.machine_failed += len(trials) - len(fair)
        if not trials:
            self._finish(kernel, "all candidates tried")
        self._note_broken(trials, fair)

    def _session(self, kernel: KernelRun) -> Session:
        if kernel.name not in self._sessions:
            left, batch = self.effort.trials - len(kernel.times), self.effort.batch
            facts = (kernel.task.mod, self.target, self.strategy, self.tools, left, min(batch, left), self.seed)
            self._sessions[kernel.name] = Session(*facts, kernel.name)
        return self._sessions[kernel.name]

    def _note_broken(self, trials: Sequence[Trial], fair: Sequence[Trial]) -> None:
        self._broken = self._broken + 1 if trials and not fair else 0
        if self._broken == _BROKEN:
            reason = failure_of(trials[-1].error).reason
            raise UserError(
                f"Tuning was given up, as this machine fails at every candidate ({reason}); all that was measured is "
                f"in {self.records.path}: run the command again when that is mended."
            )

    def _finish(self, kernel: KernelRun, why: str) -> None:
        """Judge a kernel's best candidates; once."""
        if kernel.state:
            return
        kernel.state = why
        for _ in range(_ROUNDS):
            finalists = self._finalists(kernel)
            if not finalists:
                return
            verdicts = self._judge(kernel.task.mod, self.target, finalists)
            for record, verdict in zip(finalists, verdicts, strict=True):
                if verdict.wrong:
                    self.records.commit_wrong(record, verdict.wrong)
                    kernel.wrong += 1
            right = [pair for pair in zip(finalists, verdicts, strict=True) if not pair[1].wrong]
            if right:
                self._crown(kernel, *min(right, key=lambda pair: pair[1].seconds))
                return

    def _crown(self, kernel: KernelRun, record: ms.database.TuningRecord, verdict) -> None:
        self.records.commit_winner(record, verdict.seconds, verdict.untuned)
        kernel.winner = self.records.winners[workload_key(kernel.task.mod)]

    def _finalists(self, kernel: KernelRun) -> list[ms.database.TuningRecord]:
        """The fastest records that nobody has found wrong; none if that would say nothing new."""
        if kernel.winner is not None and not kernel.tried:
            return []
        keys = {record_key(each): each for each in self._of(kernel) if seconds_of(each) is not None}
        right = [key for key in sorted(keys, key=lambda key: seconds_of(keys[key])) if key not in self.records.wrong]
        earlier = [kernel.winner["winner"]] if kernel.winner and kernel.winner["winner"] in right[_FINALISTS:] else []
        return [keys[key] for key in (*right[:_FINALISTS], *earlier)]
