# SPDX-License-Identifier: Apache-2.0
"""How often clocks are read: the numbers of all that is measured kernel by kernel, and the ways to read.

Kernels that are to be compared run in turns, so that a slow moment of the machine hits all of them alike. Their data
stays where the caches keep it from launch to launch: what is measured is the kernel after its neighbour, as in a model,
not a kernel that finds everything in memory.
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
"""Seconds of a launch, from each of some readings that span so many launches each: ``clock(launches, readings)``."""


@dataclass(frozen=True)
class Readings:
    """How long to measure.

    Attributes
    ----------
    span : float
        Seconds of launches that one reading takes at least: short enough for many readings, long beside the clock.
    most, fewest : int
        Readings of each kernel, after those that tell how long it takes.
    longest : float
        Seconds after which there are fewer than `most` of them, of all kernels that run in turns.
    """

    span: float
    most: int
    fewest: int
    longest: float


PROFILE = Readings(1e-3, 100, 5, 2.0)  # kernels fused and apart
TEXTURES = replace(PROFILE, most=20)  # a GPU is as fast in one millisecond as in the next
VERDICT = replace(PROFILE, most=20)  # tuned kernels beside the untuned one, as often as `VERDICTS` says
VERDICTS = 3
CANDIDATE = Readings(1e-3, 50, 3, 0.25)
MODEL = Readings(2e-3, 7, 3, 0.014)  # all kernels of a model, one after the other
BY_DEVICE_CLOCK = 0.1  # seconds for the readings of a clock that the host does not disturb, and that reads often itself
_KEPT = (0.1, 0.3, 0.5, 0.7, 0.9)


def in_turns(clocks: Sequence[Clock], how: Readings = PROFILE) -> list[float]:
    """Median seconds of a launch by each clock, read in turns; a short one is made many times per reading."""
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
    """Many short readings of one kernel, whose median is not that of a busy moment; few of one that takes long."""
    first = clock(1, how.fewest)
    if sum(first) > how.longest:
        return first
    launches = max(1, math.ceil(how.span / max(1e-7, median(first))))
    once = launches * max(1e-7, median(first))
    return clock(launches, max(how.fewest, min(how.most, int(how.longest / once))))


def kept(readings: Sequence[float]) -> list[float]:
    """The readings that go on record: so many of all are not slower."""
    ordered = sorted(readings)
    return [ordered[int(len(ordered) * part)] for part in _KEPT]


def host_clock(launch: Callable[[int], object]) -> Clock:
    """The host's clock around a function that launches a kernel so many times, and waits until it is done."""

    def clock(launches: int, readings: int) -> list[float]:
        found = []
        for _ in range(readings):
            start = time.perf_counter()
            launch(launches)
            found.append((time.perf_counter() - start) / launches)
        return found

    return clock


def evaluator_clock(code: Any, name: str, device: Any, sets: Sequence[Sequence]) -> Clock:
    """TVM's clock where the code is, which launches from C++; one set of arguments after the other, one a reading.

    On another machine one message brings all readings, and no time of the network is in them.
    """
    evaluator = cache(lambda launches, readings: code.time_evaluator(name, device, number=launches, repeat=readings))
    turns = itertools.cycle(sets)
    return lambda launches, readings: list(evaluator(launches, readings)(*next(turns)).results)
