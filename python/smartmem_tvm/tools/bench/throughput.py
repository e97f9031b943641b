# SPDX-License-Identifier: Apache-2.0
"""How many inferences a second a system serves when several are asked for at once, and how long each takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING

from .turns import timed

if TYPE_CHECKING:
    from .child import Child

_ROUNDS = 5
_LONG = 4  # requests of each stream in a round, at least: at its end streams wait for the last one


@dataclass(frozen=True)
class RequestEffort:
    """How many requests to measure with.

    Attributes
    ----------
    requests : int
        Of each system.
    streams : int
        Requests that a system has at a time: whenever one is done, the next one comes.
    batch : int
        Inferences of each request.
    """

    requests: int
    streams: int = 1
    batch: int = 1

    def rounds(self) -> list[int]:
        """Requests of each round: the systems serve one after the other, round by round."""
        count = max(1, min(_ROUNDS, self.requests // (_LONG * self.streams)))
        return [self.requests // count + (number < self.requests % count) for number in range(count)]

    def measure(self, children: Sequence[Child]) -> list[dict]:
        """Measure the systems of these processes in rounds; facts of each of them."""
        for child in children:
            child.call("serve", self.streams * 2)  # threads begin, CUDA graphs are recorded
        answers: list[list[tuple]] = [[] for _ in children]
        for count in self.rounds():
            for child, found in zip(children, answers):
                served = child.call("serve", count)
                found += [served] if served is not None else []
        return [{"throughput": self.summary(found)} for found in answers]

    def summary(self, rounds: Sequence[tuple[float, Sequence[float]]]) -> dict:
        """Inferences a second, percentiles of what a request takes in milliseconds, and the number of requests.

        Parameters
        ----------
        rounds : sequence
            Of each one its seconds, and those of its requests.
        """
        latencies = [each for _, round in rounds for each in round]
        if not latencies:
            return {}
        cuts = quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99
        return {
            "per_second": self.batch * len(latencies) / sum(seconds for seconds, _ in rounds),
            **{f"p{percent}": cuts[percent - 1] * 1e3 for percent in (50, 90, 99)},
            "requests": len(latencies),
            "by_round": [self.batch * len(each) / seconds for seconds, each in rounds],
        }


def serve(
    begin: Callable[[Callable], Future], prepared: Callable[[object], Callable[[], object]], streams: int, count: int
) -> tuple[float, list[float]]:
    """Serve requests, so many at a time; returns the seconds of all, and those of each.

    Parameters
    ----------
    begin : callable
        ``begin(work)`` has ``work(own)`` done by a thread; ``own`` is what the thread serves requests with.
    prepared : callable
        ``prepared(own)`` is a call that serves one request.
    """
    left = iter(range(count))

    def work(own: object) -> list[float]:
        run = prepared(own)
        return [timed(run)[0] for _ in left]  # threads share it: each takes the next one when it is done

    start = time.perf_counter()
    futures = [begin(work) for _ in range(streams)]
    latencies = [each for future in futures for each in future.result()]
    return time.perf_counter() - start, latencies
