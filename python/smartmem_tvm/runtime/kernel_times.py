# SPDX-License-Identifier: Apache-2.0
"""Share the time of one inference among its kernels, and report the rule that scheduled each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import tvm

from ..deploy.compiled import Compiled
from ..schedule.schedule_kernels import LIBRARY
from ..target import is_gpu
from .opencl import every_launch


@dataclass
class KernelTime:
    """The time of one kernel in one inference.

    Attributes
    ----------
    launches : int
    seconds : float
        All of them together, the device being idle before and after each: the median of several inferences.
    """

    launches: int = 0
    seconds: float = 0.0


@dataclass
class _Watch:
    """A VM instrument that times every call of a kernel."""

    device: tvm.runtime.Device
    clock: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    launches: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    start: float = 0.0

    def __call__(self, _func, name: str, before_run: bool, _result, *_arguments) -> int:
        if name.startswith("vm.builtin."):
            return 0
        self.device.sync()
        now = self.clock()
        if before_run:
            self.start = now
        else:
            self.seconds[name] += now - self.start
            self.launches[name] += 1
        return 0


def kernel_times(compiled: Compiled, inputs: Sequence[np.ndarray], rounds: int = 5) -> dict[str, KernelTime]:
    """Time every kernel of one inference on the target's device.

    On one thread of a CPU it is that thread's processor time, so that other programs take nothing away.

    Parameters
    ----------
    compiled : Compiled
        A model without CUDA graphs, which hide their kernels.
    inputs : sequence of numpy.ndarray
        In the order of the model's inputs.
    rounds : int
        Inferences, after one that is not measured.

    Returns
    -------
    dict
        Kernel name -> its time, the slowest first.
    """
    vm = compiled.machine()
    main, tensors = vm["main"], vm.tensors(inputs)
    main(*tensors)
    watches = [_Watch(vm.device, _clock(compiled)) for _ in range(rounds)]
    with every_launch():
        for watch in watches:
            vm.set_instrument(watch)
            main(*tensors)
    times = {
        name: KernelTime(launches, median(watch.seconds[name] for watch in watches))
        for name, launches in watches[0].launches.items()
    }
    return dict(sorted(times.items(), key=lambda item: -item[1].seconds))


def _clock(compiled: Compiled) -> Callable[[], float]:
    """Return the clock: the thread's processor time if one CPU thread does all the work, otherwise wall time."""
    alone = not is_gpu(compiled.target) and tvm.runtime.num_threads() == 1
    return time.thread_time if alone else time.perf_counter


def schedule_report(rules: Mapping[str, dict], times: Mapping[str, KernelTime] | None = None) -> dict:
    """Report the rule and the time of each kernel, and the share of the catch-all rules, as plain data for JSON.

    Parameters
    ----------
    rules : mapping
        From `schedule.schedule_kernels.kernel_rules`.
    times : mapping, optional
        From `kernel_times`; without, there are no ``launches``, no ``seconds`` and no ``share``.

    Returns
    -------
    dict
        ``kernels``: ``kernel``, ``rule``, ``family``, ``catch_all``, ``launches``, ``seconds`` and ``share`` of each,
        the slowest first. ``catch_all_share``: of all kernels of catch-all rules together. Shares are of the sum.
    """
    total = sum(each.seconds for each in times.values()) if times else 0.0
    names = [*times, *sorted(set(rules) - set(times))] if times else list(rules)
    kernels = []
    for name in names:
        made_by = rules.get(name, LIBRARY)
        entry = {"kernel": name, "rule": made_by["name"], "family": made_by["family"]}
        entry |= {"catch_all": made_by["catch_all"], "launches": None, "seconds": None, "share": None}
        if times is not None:
            found = times.get(name, KernelTime())
            share = found.seconds / total if total else 0.0
            entry |= {"launches": found.launches, "seconds": found.seconds, "share": share}
        kernels.append(entry)
    caught = sum(each["share"] for each in kernels if each["catch_all"]) if times is not None else None
    return {"kernels": kernels, "catch_all_share": caught}
