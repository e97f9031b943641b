# SPDX-License-Identifier: Apache-2.0
"""Worker processes that run one job after the other, and may crash, hang or run out of memory without further harm.

A job that ends its worker gets a fresh worker once: an earlier job may have broken the first one. If it ends the fresh
worker too, the job is at fault, unless the worker was killed from outside. Workers end with the process that started
them, also in the middle of a job.
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

_START = 120.0  # seconds that a worker may take for its imports
_USES = 256  # jobs after which a fresh worker replaces a worker
_GRACE = 5.0  # seconds that an ending worker may take to exit
_READY = "ready"
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # no program sends itself one of these


@dataclass(frozen=True)
class Answer:
    """The outcome of a job: the function's result, or an error (`faults.machine_fault` tells the machine's errors)."""

    value: Any = None
    error: str = ""

    def result(self) -> Any:
        """Return the function's result.

        Raises
        ------
        UserError
            If the machine failed.
        RuntimeError
            If the job failed.
        """
        if self.error and machine_fault(self.error):
            raise UserError(f"A kernel could not be measured here ({self.error.rstrip('.')}); run the command again.")
        if self.error:
            raise RuntimeError(self.error)
        return self.value


@dataclass(frozen=True)
class Confines:
    """The resources that a worker may use.

    Attributes
    ----------
    cores : collection of int
        CPU cores that it runs on; if empty, those of the process that starts it.
    memory : int or None
        Bytes of its own data, including its imports; None for no limit.
    """

    cores: Collection[int] = ()
    memory: int | None = None


class Workers:
    """A pool of worker processes, started on demand.

    Parameters
    ----------
    count : int
        Number of processes that work at the same time.
    patience : float
        Seconds for one job, not counting the start of a worker.
    confines : Confines
    imports : sequence of str
        Modules that a worker imports before its first job.
    turn : callable, optional
        Returns a context manager that is held while the workers work.
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
        """Return the answer of ``function(job)`` for each job.

        Parameters
        ----------
        function : callable
            Function at the top level of a module, which the workers import; jobs and results must be picklable.
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
        """Yield the number and the answer of each job, in the order of completion.

        Parameters
        ----------
        go_on : callable
            Called before another job begins; if it returns False, the waiting jobs get no answer.
        """
        batch = _Batch(function, jobs, self.patience if patience is None else patience, go_on)
        try:
            with self._in_turn():
                while batch.goes_on() or any(worker is not None and worker.job is not None for worker in self._slots):
                    self._hand_out(batch)
                    self._listen(batch)
                    yield from batch.news()
        except BaseException:  # no caller waits for the running jobs any more
            self.close()
            raise

    def close(self) -> None:
        """End all processes, also in the middle of a job; they start again on demand."""
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
        """Wait for an answer, the end of a worker or a deadline, and handle it."""
        busy = [worker for worker in self._slots if worker is not None and worker.job is not None]
        if not busy:
            return
        first = min(worker.deadline for worker in busy)
        wait([worker.connection for worker in busy], max(0.0, first - time.monotonic()))
        for worker in busy:
            if worker.connection.poll():  # an answer is not late if Ctrl-Z kept this process from reading it
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
        """Handle a worker that has ended during its job."""
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
    """Close all pools at exit, before the handler of `multiprocessing` terminates the workers.

    Handlers run in reverse order, and `multiprocessing`, imported above, has registered its handler earlier.
    """
    for workers in list(_open):
        workers.close()


class _Batch:
    """One call of `Workers.as_done`."""

    def __init__(self, function: Callable, jobs: Sequence, patience: float, go_on: Callable[[], bool]):
        self.function, self.jobs, self.patience, self._go_on = function, jobs, patience, go_on
        self.waiting = deque(range(len(jobs)))
        self._answers: deque[tuple[int, Answer]] = deque()

    def goes_on(self) -> bool:
        """Whether another job can begin."""
        if self.waiting and not self._go_on():
            self.waiting.clear()
        return bool(self.waiting)

    def answer(self, number: int, answer: Answer) -> None:
        """Record the answer of a job."""
        self._answers.append((number, answer))

    def news(self) -> Iterator[tuple[int, Answer]]:
        """Yield the answers since the last call."""
        while self._answers:
            yield self._answers.popleft()

    def give_up(self, reason: str, *more: int) -> None:
        """Answer the waiting jobs, and the jobs `more`, with an error, as there is no worker for them."""
        for number in (*more, *self.waiting):
            self.answer(number, Answer(error=reason))
        self.waiting.clear()


class _Worker:
    """One process.

    Attributes
    ----------
    job : int or None
        The number of its present job.
    ready : bool
        Whether it has started.
    served : int
        Number of jobs that it was given.
    deadline : float
        Deadline of its start, or of its job (`time.monotonic`).
    """

    def __init__(self, confines: Confines, imports: Sequence[str]):
        context = multiprocessing.get_context("spawn")  # a fork would inherit the parent's memory and threads
        self.job, self.ready, self.served = None, False, 0
        self.deadline = time.monotonic() + _START
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, confines, imports), daemon=True)
        # Ctrl-C goes to the whole process group, but the parent ends its workers itself. The worker inherits the
        # blocked signal, from its first moment on, and so do the linkers that it starts.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return not self._process.is_alive()

    @property
    def ending(self) -> str:
        """A sentence that says how it ended."""
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"The worker ended with exit code {code}."
        name = signal.Signals(-code).name
        return f"The worker {KILLED} ({name})." if -code in _OUTSIDE else f"The worker crashed ({name})."

    def take(self, number: int, batch: _Batch) -> None:
        """Begin a job, or keep it until the worker has started."""
        self.job = number
        if self.ready:
            self.served += 1
            self.deadline = time.monotonic() + batch.patience
            with contextlib.suppress(OSError):  # the worker has ended, which `_listen` detects
                self.connection.send((batch.function, batch.jobs[number]))

    def wait(self) -> None:
        """Let the worker end by itself, so that `ending` is its own, and its temporary files are removed."""
        self._process.join(_GRACE)

    def end(self) -> None:
        """Kill the worker and the compilers that it started; only a driver can delay this."""
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has not yet created its own process group
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join(_GRACE)
        self.connection.close()


def _serve(connection: Connection, confines: Confines, imports: Sequence[str]) -> None:
    """Run a worker: one job after the other, until the pipe closes; compilers that it starts join its process group."""
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
    """End with the parent: a killed parent cannot end its workers, and a worker may be in an endless loop."""
    wait([multiprocessing.parent_process().sentinel])
    os.killpg(0, signal.SIGKILL)


def _confine(confines: Confines) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):  # a crash may print a page
        os.dup2(silence, number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if confines.cores:
        os.sched_setaffinity(0, confines.cores)
    if confines.memory is not None:  # not RLIMIT_AS: GPU drivers reserve more address space than there is memory
        resource.setrlimit(resource.RLIMIT_DATA, (confines.memory, confines.memory))


def _answer(message: bytes) -> bytes:
    try:
        function, job = pickle.loads(message)
        return pickle.dumps(Answer(function(job)))
    except UserError as error:
        return pickle.dumps(Answer(error=str(error)))
    except Exception as error:  # a job may raise anything
        return pickle.dumps(Answer(error=f"{type(error).__name__}: {error}"))
