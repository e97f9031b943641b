# SPDX-License-Identifier: Apache-2.0
"""Measurements of which some are made at a time, where there are several devices to make them on."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from ..errors import UserError

Job = TypeVar("Job")
Prepared = TypeVar("Prepared")
Result = TypeVar("Result")


def side_by_side(
    jobs: Iterable[Job],
    prepare: Callable[[Job], Prepared],
    work: Callable[[Prepared], Result],
    lanes: int = 0,
    end: float = math.inf,
) -> Iterator[tuple[Job, Result | Exception]]:
    """Each job with what `work` made of it, or with the error that was raised: as they are done.

    Parameters
    ----------
    prepare : callable
        Runs in the caller's thread, while work is done in the others: TVM compiles there.
    lanes : int
        Threads that work; 0 for the caller's own.
    end : float
        Until when jobs are begun, as `time.monotonic` counts.

    Raises
    ------
    UserError
        The first one of a job, when all that had begun are done: what is wrong for one is so for all.
    """
    stop, fatal = threading.Event(), []
    begun: dict[Future, Job] = {}

    def unless_stopped(prepared: Prepared) -> Result:
        if stop.is_set():
            raise CancelledError
        try:
            return work(prepared)
        except UserError:
            stop.set()
            raise

    def done(most: int) -> Iterator[tuple[Job, Result | Exception]]:
        """Wait until at most so many are being worked on."""
        while len(begun) > most:
            for future in wait(begun, return_when=FIRST_COMPLETED).done:
                job, error = begun.pop(future), future.exception()
                if isinstance(error, UserError):
                    fatal.append(error)
                elif not isinstance(error, CancelledError):
                    yield job, error or future.result()

    with ThreadPoolExecutor(lanes) if lanes else _CallersThread() as pool:
        try:
            for job in jobs:
                if fatal or time.monotonic() > end:
                    break
                begun[_begin(pool, job, prepare, unless_stopped)] = job
                yield from done(lanes)  # one more is ready when a lane gets free
            yield from done(0)
        finally:
            stop.set()
    if fatal:
        raise fatal[0]


def _begin(pool: Executor, job: Job, prepare: Callable, work: Callable) -> Future:
    """Work on what is prepared of a job, or a future of the error that this raised."""
    try:
        prepared = prepare(job)
    except Exception as error:
        failed: Future = Future()
        failed.set_exception(error)
        return failed
    return pool.submit(work, prepared)


class _CallersThread(Executor):
    """Works at once: TVM's threads of a CPU are set up for the thread that it is used from."""

    def submit(self, work: Callable, /, *arguments: object, **options: object) -> Future:
        future: Future = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future
