# SPDX-License-Identifier: Apache-2.0
"""Run several inferences of one compiled model at once: sessions on threads that share the cores."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import tvm

from ..errors import UserError
from ..tune.host import most_threads, process_cpus, run_threads
from .inference_session import Session, kept_cores
from .runnable import Runnable

Result = TypeVar("Result")

_OWN_CORES = -2  # TVM's kSpecifyOneCorePerThread: the calling thread's pool gets one worker for each listed CPU


class Streams:
    """Serves requests for one model, `count` at a time; close it, or use it with ``with``.

    Parameters
    ----------
    model : Compiled or Loaded
        The model; its weights are in memory once.
    count : int
        Number of sessions, each on its own thread.
    threads : int, optional
        Threads of each session; by default the threads of this process (TVM_NUM_THREADS, else its cores) divided by
        `count`. TVM binds each session's threads after the first to cores, different ones for each session while there
        are enough, unless TVM_BIND_THREADS is 0. Without effect if kernels run on a GPU.

    Attributes
    ----------
    count, threads : int
        The values in use.

    Raises
    ------
    UserError
        If a number is not positive, there are too many threads, or the model has a memory budget.
    """

    def __init__(self, model: Runnable, count: int, threads: int | None = None):
        cpus = process_cpus()
        self.count, self.threads = count, share_of_threads(count, threads, cpus)
        self._mine = threading.local()
        self._free: queue.SimpleQueue[tuple[Session, list[int]]] = queue.SimpleQueue()
        for number in range(count):
            first = number * self.threads
            own = [cpus[index % len(cpus)] for index in range(first, first + self.threads)]
            self._free.put((model.session(), own))
        self._executor = ThreadPoolExecutor(count, "smartmem-stream", self._begin)

    def submit(self, /, *inputs, function: str | None = None, **named) -> Future[list[np.ndarray]]:
        """Request one inference, with arguments as for `Compiled.run`; the future raises its errors."""
        return self.call(lambda session: session.run(*inputs, function=function, **named))

    def map(self, requests: Iterable) -> Iterator[list[np.ndarray]]:
        """Return the outputs of all requests, in their order.

        Parameters
        ----------
        requests : iterable
            Each request is a mapping of names, a tuple or list of all inputs, or the only input.
        """
        futures = [self.submit(*_inputs(each)) for each in requests]
        return (future.result() for future in futures)

    def call(self, work: Callable[[Session], Result]) -> Future[Result]:
        """Let a free thread call `work` with its session."""
        return self._executor.submit(lambda: work(self._mine.session))

    def close(self) -> None:
        """Wait for the pending requests, then end the threads."""
        self._executor.shutdown()

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _begin(self) -> None:
        """Initialise a new thread: take a session, and bind the thread's pool to its CPUs."""
        self._mine.session, cpus = self._free.get_nowait()
        if self._mine.session.vm.on_cpu:
            pool = tvm.get_global_func("runtime.config_threadpool")
            with kept_cores():
                pool(_OWN_CORES, len(cpus), [str(cpu) for cpu in cpus])


def share_of_threads(count: int, threads: int | None = None, cpus: Collection[int] = ()) -> int:
    """Return the threads of each of `count` inferences at once: the given number, or an equal share of all threads.

    Raises
    ------
    UserError
        If a number is not positive, or there are more threads than the machine can run.
    """
    for what, number in (("streams", count), ("threads", threads)):
        if number is not None and number < 1:
            raise UserError(f"{number} is no number of {what}: give 1 or more.")
    share = threads or max(run_threads(cpus) // count, 1)
    if count * share > most_threads():
        raise UserError(
            f"{count} streams on {share} threads each are too many for this machine, which runs {most_threads()} "
            f"threads at most: give fewer."
        )
    return share


def _inputs(request: object) -> tuple:
    return tuple(request) if isinstance(request, tuple | list) else (request,)
