# SPDX-License-Identifier: Apache-2.0
"""The state of one kernel while it is tuned, and its expected gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .record_lines import is_faster
from .tasks import Task

_HOPE = 0.2  # share of its time that a kernel is expected to gain in its first batch


@dataclass
class KernelRun:
    """The tuning of one kernel.

    Attributes
    ----------
    task : Task
    untuned : float
        Seconds of one launch without tuning.
    shares : mapping
        Model -> the kernel's share of its untuned time.
    share : float
        Share of the time of all models, all with equal weight.
    times : list
        Seconds of each tried candidate, with those of earlier runs; None for a failed one.
    tried : int
        Candidates of this run.
    machine_failed : int
        Candidates for which the machine had no room.
    spent : float
        Seconds of this run that were spent on the kernel.
    state : str
        The reason why it is not tuned further, such as ``all trials done``; empty while it is tuned.
    winner : dict or None
        The line of its winner in the records, with ``seconds`` and ``untuned``.
    wrong : int
        Finalists with wrong results.
    """

    task: Task
    untuned: float
    shares: Mapping[str, float] = field(default_factory=dict)
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
        """Speedup over the untuned kernel, measured in turns."""
        return self.winner["untuned"] / self.winner["seconds"] if self.winner and is_faster(self.winner) else 1.0

    def promise(self, batch: int) -> float:
        """Return the share of the kernel's time that one more batch may save."""
        promise, best = _HOPE, None
        for start in range(0, len(self.times), batch):
            found = [each for each in self.times[start : start + batch] if each is not None]
            now = min([*found, *([best] if best is not None else [])], default=None)
            gained = 1 - now / best if best is not None and now is not None else 0.0
            promise, best = (promise + gained) / 2, now
        return promise


def kernel_runs(tasks: Sequence[Task], untuned: Sequence[float]) -> list[KernelRun]:
    """Return the kernels of some models with their shares, the largest share first.

    Parameters
    ----------
    untuned : sequence of float
        Untuned seconds of a launch of each task.
    """
    totals: dict[str, float] = {}
    for task, seconds in zip(tasks, untuned, strict=True):
        for model, launches in task.models.items():
            totals[model] = totals.get(model, 0.0) + launches * seconds
    found = []
    for task, seconds in zip(tasks, untuned, strict=True):
        shares = {model: launches * seconds / totals[model] for model, launches in task.models.items()}
        found.append(KernelRun(task, seconds, shares, sum(shares.values()) / len(totals)))
    return sorted(found, key=lambda kernel: -kernel.share)


def gain_of(kernels: Sequence[KernelRun], model: str | None = None) -> float:
    """Return the total speedup of the kernels of a model, or of all models with equal weight."""
    left = sum((kernel.share if model is None else kernel.shares.get(model, 0.0)) / kernel.gain for kernel in kernels)
    return 1 / left
