# SPDX-License-Identifier: Apache-2.0
"""Processes that do one job after the other, and may crash, hang or run out of memory without harm to anyone else.

A job that ends its worker is given to a fresh one, once: an earlier job may have left the first one broken. What ends a
fresh worker is the job's own fault, unless somebody killed the worker. Workers end with the process that started them,
whatever they are doing.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import multiprocessing
import multiprocessing.util
import os
import pickle
import resource
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ..errors import UserError
from .faults import KILLED, NO_WORKER, machine_fault

_START = 120.0  # seconds that a worker may take to import what it needs
_USES = 256  # jobs, after which a worker makes room for a fresh one
_GRACE = 5.0  # seconds that a dead worker may take to be gone
_READY = "ready"
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # no program sends itself one of these


@dataclass(frozen=True)
class Answer:
    """What came of a job: what the function returned, or why it did not (`faults.machine_fault` tells whose fault)."""

    value: Any = None
    error: str = ""

    def result(self) -> Any:
        """What the function returned.

        Raises
        ------
        UserError
            If the machine failed.
        RuntimeError
            If the job did.
        """
        if self.error and machine_fault(self.error):
            raise UserError(f"A kernel could not be measured here ({self.error.rstrip('.')}); run the command again.")
        if self.error:
            raise RuntimeError(self.error)
        return self.value


@dataclass(frozen=True)
class Confines:
    """What a worker may use.

    Attributes
    ----------
    cores : collection of int
        CPU cores that it runs on; empty: as the process that starts it.
    memory : int or None
        Bytes of its own, with what it has imported; None: as much as there is.
    """

    cores: Collection[int] = ()
    memory: int | None = None


class Workers:
    """Some processes, started when there is something to do.

    Parameters
    ----------
    count : int
        That work at the same time.
    patience : float
        Seconds for one job; those that a worker needs to start do not count.
    confines : Confines
    imports : sequence of str
        Modules that a worker imports before it takes a job.
    turn : callable, optional
        Makes the context in which they work.
    """

    def __init__(
        self,
        count: int,
        patience: float,
        confines: Confines = Confines(),
        imports: Sequence[str] = (),
        turn: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.patience, self._terms, self._in_turn = patience, (confines, tuple(imports)), turn
        self.count, self._slots = count, [None] * count
        _open.add(self)

    def map(self, function: Callable[[Any], Any], jobs: Sequence, patience: float | None = None) -> list[Answer]:
        """What ``function(job)`` gives for each job.

        Parameters
        ----------
        function : callable
            Of a module, which the workers import; jobs and results are picklable.
        patience : float, optional
            Seconds for one of these jobs.
        """
        answers = dict(self.as_done(function, jobs, patience))
        return [answers[number] for number in range(len(jobs))]

    def as_done(
        self,
        function: Callable[[Any], Any],
        jobs: Sequence,
        patience: float | None = None,
        go_on: Callable[[], bool] = lambda: True,
    ) -> Iterator[tuple[int, Answer]]:
        """The same with the number of the job, in the order in which they are done.

        Parameters
        ----------
        go_on : callable
            Asked before another job is begun; if not, those that wait have no answer.
        """
        batch = _Batch(function, jobs, self.patience if patience is None else patience, go_on)
        try:
            with self._in_turn():
                while batch.goes_on() or any(worker is not None and worker.job is not None for worker in self._slots):
                    self._hand_out(batch)
                    self._listen(batch)
                    yield from batch.news()
        except BaseException:  # whoever is working does so for nobody
            self.close()
            raise

    def close(self) -> None:
        """End all processes, whatever they are doing; they start again when there is something to do."""
        workers, self._slots = [each for each in self._slots if each is not None], [None] * len(self._slots)
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            if worker.job is None:
                worker.wait()
            worker.end()

    def _hand_out(self, batch: _Batch) -> None:
        for number, worker in enumerate(self._slots):
            if worker is not None and worker.job is None and (worker.served >= _USES or worker.gone):
                worker.connection.close()
                worker.wait()
                worker.end()
                worker = self._slots[number] = None
            if batch.goes_on() and (worker is None or worker.job is None):
                try:
                    worker = self._slots[number] = worker or _Worker(*self._terms)
                except OSError as error:
                    batch.give_up(f"{NO_WORKER}: {error}")
                    return
                worker.take(batch.waiting.popleft(), batch)

    def _listen(self, batch: _Batch) -> None:
        """Wait until something happens, and see to it."""
        busy = [worker for worker in self._slots if worker is not None and worker.job is not None]
        if not busy:
            return
        first = min(worker.deadline for worker in busy)
        wait([worker.connection for worker in busy], max(0.0, first - time.monotonic()))
        for worker in busy:
            if worker.connection.poll():  # who has answered is not late, however long Ctrl-Z has kept us from listening
                self._receive(worker, batch)
            elif time.monotonic() >= worker.deadline:
                self._replace(worker)
                if worker.ready:
                    batch.answer(worker.job, Answer(error=f"The job took longer than {batch.patience:g} s."))
                else:
                    batch.give_up(f"{NO_WORKER} within {_START:g} s.", worker.job)

    def _receive(self, worker: _Worker, batch: _Batch) -> None:
        try:
            news = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._worker_ended(worker, batch)
            return
        if news == _READY:
            worker.ready = True
            worker.take(worker.job, batch)
        else:
            batch.answer(worker.job, news)
            worker.job = None

    def _worker_ended(self, worker: _Worker, batch: _Batch) -> None:
        """A worker has ended with its job."""
        worker.wait()
        self._replace(worker)
        if not worker.ready:
            batch.give_up(f"{NO_WORKER}: {worker.ending}.", worker.job)
        elif worker.served > 1:
            batch.waiting.appendleft(worker.job)
        else:
            batch.answer(worker.job, Answer(error=worker.ending))

    def _replace(self, worker: _Worker) -> None:
        worker.end()
        self._slots[self._slots.index(worker)] = None


_open: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before `multiprocessing`, imported above and so asked later, terminates workers that would end by themselves."""
    for workers in list(_open):
        workers.close()


class _Batch:
    """One call of `Workers.as_done`."""

    def __init__(self, function: Callable, jobs: Sequence, patience: float, go_on: Callable[[], bool]):
        self.function, self.jobs, self.patience, self._go_on = function, jobs, patience, go_on
        self.waiting = deque(range(len(jobs)))
        self._answers: deque[tuple[int, Answer]] = deque()

    def goes_on(self) -> bool:
        """Whether there is another job to begin."""
        if self.waiting and not self._go_on():
            self.waiting.clear()
        return bool(self.waiting)

    def answer(self, number: int, answer: Answer) -> None:
        """A job is done."""
        self._answers.append((number, answer))

    def news(self) -> Iterator[tuple[int, Answer]]:
        """The answers since the last time."""
        while self._answers:
            yield self._answers.popleft()

    def give_up(self, reason: str, *more: int) -> None:
        """Nobody is there for the jobs that wait."""
        for number in (*more, *self.waiting):
            self.answer(number, Answer(error=reason))
        self.waiting.clear()


class _Worker:
    """One process.

    Attributes
    ----------
    job : int or None
        The number of the job that it has.
    ready : bool
        It has started.
    served : int
        Jobs that it was given.
    deadline : float
        Of its start, or of its job; by `time.monotonic`.
    """

    def __init__(self, confines: Confines, imports: Sequence[str]):
        context = multiprocessing.get_context("spawn")  # a fork would inherit the parent's memory and threads
        self.job, self.ready, self.served = None, False, 0
        self.deadline = time.monotonic() + _START
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, confines, imports), daemon=True)
        # Ctrl-C goes to the whole group; the parent ends its workers. What is blocked here is so there, from the first
        # moment on, and in the linkers that they start.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    @property
    def gone(self) -> bool:
        """It has ended."""
        return not self._process.is_alive()

    @property
    def ending(self) -> str:
        """How it has ended."""
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"The worker ended with exit code {code}."
        name = signal.Signals(-code).name
        return f"The worker {KILLED} ({name})." if -code in _OUTSIDE else f"The worker crashed ({name})."

    def take(self, number: int, batch: _Batch) -> None:
        """Begin a job, or keep it until the worker is there."""
        self.job = number
        if self.ready:
            self.served += 1
            self.deadline = time.monotonic() + batch.patience
            with contextlib.suppress(OSError):  # it is gone: whoever listens will see
                self.connection.send((batch.function, batch.jobs[number]))

    def wait(self) -> None:
        """Let it end by itself, so that `ending` is its own, and that it removes its temporary files."""
        self._process.join(_GRACE)

    def end(self) -> None:
        """Be gone when this returns, with its compilers, unless a driver holds it."""
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has not got to the group of its own
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join(_GRACE)
        self.connection.close()


def _serve(connection: Connection, confines: Confines, imports: Sequence[str]) -> None:
    """The worker: one job after the other, until the pipe closes; what it starts, as compilers, is in its group."""
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _confine(confines)
    for name in imports:
        importlib.import_module(name)
    connection.send(_READY)
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(_answer(message))


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, and one of them may be in an endless loop."""
    wait([multiprocessing.parent_process().sentinel])
    os.killpg(0, signal.SIGKILL)


def _confine(confines: Confines) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):  # what crashes may print a page
        os.dup2(silence, number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if confines.cores:
        os.sched_setaffinity(0, confines.cores)
    if confines.memory is not None:  # not address space, of which drivers of GPUs reserve more than there is memory
        resource.setrlimit(resource.RLIMIT_DATA, (confines.memory, confines.memory))


def _answer(message: bytes) -> bytes:
    try:
        function, job = pickle.loads(message)
        return pickle.dumps(Answer(function(job)))
    except UserError as error:
        return pickle.dumps(Answer(error=str(error)))
    except Exception as error:  # whatever a job raises is its own business
        return pickle.dumps(Answer(error=f"{type(error).__name__}: {error}"))
