# SPDX-License-Identifier: Apache-2.0
"""Latency of compiled models, measured so that two of them can be compared."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

from ..errors import UserError


def positive(text: str) -> int:
    """A count of at least one, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads to run on (default: all cores)"
    )


def set_threads(count: int | None) -> int:
    """Let TVM run kernels on `count` threads, all cores by default; returns how many there are.

    Raises
    ------
    UserError
        If there are fewer cores than that: TVM never starts more threads than cores.
    """
    import tvm

    if count is not None:
        tvm.get_global_func("runtime.config_threadpool")(1, count)
        if tvm.runtime.num_threads() < count:
            raise UserError(
                f"--threads {count} is more than the {tvm.runtime.num_threads()} cores there are."
            )
        return count
    return tvm.runtime.num_threads()


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
