# SPDX-License-Identifier: Apache-2.0
"""Measure the latencies of several systems in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np

    from ...deploy.weights import Machine
    from .child import Child

T = TypeVar("T")


@dataclass(frozen=True)
class RunEffort:
    """The amount of measuring.

    Attributes
    ----------
    budget : float
        Seconds of timed runs for each system.
    least, most : int
        Bounds on the runs of each, which override the budget.
    pause : float
        Seconds before each run. Threads of one system may spin for a moment after its run; the pause keeps this out of
        the time of the next one.
    settle : int
        Runs before each timed one. A device that has just served another process first restores this one's state, a
        cost that a program alone on the device does not have.
    warm_up : int
        Rounds that are not timed.
    """

    budget: float = 5.0
    least: int = 3
    most: int = 50
    pause: float = 0.002
    settle: int = 0
    warm_up: int = 1

    def measure(self, children: Sequence[Child]) -> list[dict]:
        """Measure the systems of these processes in turns; return the facts of each."""
        runs = [lambda each=each: each.call("run") or 0.0 for each in children]
        return [{"latency_ms": summary(seconds)} for seconds in in_turns(runs, self)]


def in_turns(runs: Sequence[Callable[[], float]], effort: RunEffort) -> list[list[float]]:
    """Run each system once in every round, so that a slow moment of the machine affects all alike.

    A slow system leaves the rounds when its budget is spent.

    Parameters
    ----------
    runs : sequence of callable
        Each runs its system once and returns the seconds.

    Returns
    -------
    list of list of float
        Seconds of each run of each system.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(effort.warm_up):
        for run in runs:
            run()
    active = list(range(len(runs)))
    while active:
        for index in active:
            time.sleep(effort.pause)
            for _ in range(effort.settle):
                runs[index]()
            seconds[index].append(runs[index]())
        active = [i for i in active if _goes_on(seconds[i], effort)]
    return seconds


def _goes_on(seconds: list[float], effort: RunEffort) -> bool:
    return len(seconds) < effort.least or (len(seconds) < effort.most and sum(seconds) < effort.budget)


def medians(calls: Sequence[Callable[[], object]], rounds: int, warm_up: int = 2) -> list[float]:
    """Return the median seconds of each call, taken in turns for `rounds` rounds."""
    effort = RunEffort(least=rounds, most=rounds, pause=0.0, warm_up=warm_up)
    return [median(each) for each in in_turns([lambda call=call: timed(call)[0] for call in calls], effort)]


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of a call and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def inference(vm: Machine, arrays: Sequence[np.ndarray], function: str = "main") -> Callable[[], None]:
    """Return a function that runs a model's function on arrays already on the device and waits for its kernels."""
    main, tensors = vm[function], vm.tensors(arrays)

    def run() -> None:
        main(*tensors)
        vm.device.sync()

    return run


def summary(seconds: Sequence[float]) -> dict:
    """Return median, 10th and 90th percentile in milliseconds, and the number of runs."""
    if len(seconds) == 1:
        low = high = seconds[0]
    else:
        tenths = quantiles(seconds, n=10, method="inclusive")
        low, high = tenths[0], tenths[-1]
    return {"median": median(seconds) * 1e3, "p10": low * 1e3, "p90": high * 1e3, "runs": len(seconds)}
