# SPDX-License-Identifier: Apache-2.0
"""Measure the throughput of a system with several requests at once, and the latency of each."""

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
_LONG = 4  # least requests of each stream in a round: at its end streams wait for the last one


@dataclass(frozen=True)
class RequestEffort:
    """The number of requests to measure.

    Attributes
    ----------
    requests : int
        Requests of each system.
    streams : int
        Requests in flight: when one is done, the next one starts.
    batch : int
        Samples of each request.
    """

    requests: int
    streams: int = 1
    batch: int = 1

    def rounds(self) -> list[int]:
        """Return the requests of each round: in a round the systems serve one after the other."""
        count = max(1, min(_ROUNDS, self.requests // (_LONG * self.streams)))
        return [self.requests // count + (number < self.requests % count) for number in range(count)]

    def measure(self, children: Sequence[Child]) -> list[dict]:
        """Measure the systems of these processes in rounds; return the facts of each."""
        for child in children:
            child.call("serve", self.streams * 2)  # starts threads and records CUDA graphs
        answers: list[list[tuple]] = [[] for _ in children]
        for count in self.rounds():
            for child, found in zip(children, answers):
                served = child.call("serve", count)
                found += [served] if served is not None else []
        return [{"throughput": self.summary(found)} for found in answers]

    def summary(self, rounds: Sequence[tuple[float, Sequence[float]]]) -> dict:
        """Return inferences per second, percentiles of the latency of a request in milliseconds, and their number.

        Parameters
        ----------
        rounds : sequence
            For each round, its seconds and those of its requests.
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
    """Serve requests, `streams` at a time; return the seconds of all, and those of each.

    Parameters
    ----------
    begin : callable
        ``begin(work)`` runs ``work(own)`` on a thread; ``own`` is the thread's session.
    prepared : callable
        ``prepared(own)`` returns a function that serves one request.
    """
    left = iter(range(count))

    def work(own: object) -> list[float]:
        run = prepared(own)
        return [timed(run)[0] for _ in left]  # the threads share `left`: each takes the next request when it is done

    start = time.perf_counter()
    futures = [begin(work) for _ in range(streams)]
    latencies = [each for future in futures for each in future.result()]
    return time.perf_counter() - start, latencies
