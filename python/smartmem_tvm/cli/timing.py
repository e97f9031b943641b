# SPDX-License-Identifier: Apache-2.0
"""Latency of compiled models, measured so that two of them can be compared."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..errors import UserError
from ..tune.host import run_threads, usable_cores
from . import argument_types

if TYPE_CHECKING:
    import numpy as np

    from ..deploy.weights import Machine

__all__ = ["add_threads", "inference", "interleaved", "set_threads", "thread_count", "usable_cores"]

_CROWD = 4  # threads for each logical CPU, at most


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    text = "CPU threads to run on (default: TVM_NUM_THREADS, else one per core)"
    parser.add_argument("--threads", type=argument_types.positive, metavar="N", help=text)


def thread_count(wanted: int | None) -> int:
    """Threads of this machine's CPU that a command runs kernels on.

    Raises
    ------
    UserError
        If there are so many that they would bring the machine to a halt: TVM's do not sleep while they wait.
    """
    count, most = wanted or run_threads(), _CROWD * (os.cpu_count() or 1)
    if count > most:
        raise UserError(
            f"{count} threads (--threads, or TVM_NUM_THREADS) are too many for this machine's {os.cpu_count()} cores: "
            f"give at most {most}."
        )
    return count


def set_threads(wanted: int | None) -> int:
    """Let TVM run kernels on so many threads (`thread_count`); returns the number.

    To be called before the first kernel runs: TVM fixes the size of its pool then. Its own default is half the
    logical CPUs, which is wrong where cores have one thread each, as in most virtual machines.
    """
    count = thread_count(wanted)
    import tvm

    os.environ["TVM_NUM_THREADS"] = str(count)
    tvm.get_global_func("runtime.config_threadpool")(1, count)
    return tvm.runtime.num_threads()


def inference(vm: Machine, arrays: Sequence[np.ndarray]) -> Callable[[], None]:
    """A call that runs ``main`` on arrays that are on the device already, until all of its kernels are done."""
    main, tensors = vm["main"], vm.tensors(arrays)

    def run() -> None:
        main(*tensors)
        vm.device.sync()

    return run


def interleaved(calls: Sequence[Callable[[], object]], rounds: int, warmup: int = 2) -> list[float]:
    """Median seconds of each call, one after the other in every round.

    A slow moment of the machine then hits all of them alike, where one after the other it would favour one.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(warmup + rounds):
        for call, times in zip(calls, seconds):
            start = time.perf_counter()
            call()
            if number >= warmup:
                times.append(time.perf_counter() - start)
    return [median(times) for times in seconds]
