# SPDX-License-Identifier: Apache-2.0
"""Clocks, and the number of readings of each kind of measurement.

Kernels to be compared run in turns, so that a slow moment of the machine affects all of them alike. Their data may stay
in the caches from launch to launch: a kernel is measured as in a model, after its neighbour, and not with all of its
data in main memory.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

Clock = Callable[[int, int], list[float]]
"""``clock(launches, readings)``: seconds of one launch, from each reading; a reading spans several launches."""


@dataclass(frozen=True)
class Readings:
    """The length of a measurement.

    Attributes
    ----------
    span : float
        Least seconds of one reading: short enough for many readings, and long compared with the clock's resolution.
    most, fewest : int
        Number of readings of each kernel, after the first ones that estimate its time.
    longest : float
        Seconds of all kernels that run in turns, above which they get fewer than `most` readings.
    """

    span: float
    most: int
    fewest: int
    longest: float


PROFILE = Readings(1e-3, 100, 5, 2.0)  # fused kernels and their parts
TEXTURES = replace(PROFILE, most=20)  # a GPU is as fast in one millisecond as in the next
VERDICT = replace(PROFILE, most=20)  # tuned kernels in turns with the untuned one, `VERDICTS` times
VERDICTS = 3
CANDIDATE = Readings(1e-3, 50, 3, 0.25)
MODEL = Readings(2e-3, 7, 3, 0.014)  # all kernels of a model, one after the other
BY_DEVICE_CLOCK = 0.1  # seconds of readings of a device's clock, which the host does not disturb
_KEPT = (0.1, 0.3, 0.5, 0.7, 0.9)


def in_turns(clocks: Sequence[Clock], how: Readings = PROFILE) -> list[float]:
    """Return the median seconds of a launch by each clock, read in turns; short launches repeat within a reading."""
    first = [min(clock(1, 3)) for clock in clocks]
    times = [max(1, math.ceil(how.span / max(seconds, 1e-7))) for seconds in first]
    turn = sum(seconds * count for seconds, count in zip(first, times, strict=True))
    rounds = max(how.fewest, min(how.most, int(how.longest / max(turn, 1e-9))))
    found: list[list[float]] = [[] for _ in clocks]
    for _ in range(1 + rounds):  # the first turn warms up
        for clock, count, readings in zip(clocks, times, found, strict=True):
            readings += clock(count, 1)
    return [median(readings[1:]) for readings in found]


def one_by_one(clock: Clock, how: Readings) -> list[float]:
    """Return many short readings of one kernel, so that the median ignores busy moments; few of a long kernel."""
    first = clock(1, how.fewest)
    if sum(first) > how.longest:
        return first
    launches = max(1, math.ceil(how.span / max(1e-7, median(first))))
    once = launches * max(1e-7, median(first))
    return clock(launches, max(how.fewest, min(how.most, int(how.longest / once))))


def kept(readings: Sequence[float]) -> list[float]:
    """Return the quantiles of the readings that a record keeps."""
    ordered = sorted(readings)
    return [ordered[int(len(ordered) * part)] for part in _KEPT]


def host_clock(launch: Callable[[int], object]) -> Clock:
    """Return the host's clock for a function that launches a kernel some times, and waits until it is done."""

    def clock(launches: int, readings: int) -> list[float]:
        found = []
        for _ in range(readings):
            start = time.perf_counter()
            launch(launches)
            found.append((time.perf_counter() - start) / launches)
        return found

    return clock


def evaluator_clock(code: Any, name: str, device: Any, sets: Sequence[Sequence]) -> Clock:
    """Return TVM's clock, which launches from C++ on the machine of the code, with one set of arguments per reading.

    On another machine, one message brings all readings, which include no time of the network.
    """
    evaluator = cache(lambda launches, readings: code.time_evaluator(name, device, number=launches, repeat=readings))
    turns = itertools.cycle(sets)
    return lambda launches, readings: list(evaluator(launches, readings)(*next(turns)).results)
