# SPDX-License-Identifier: Apache-2.0
"""A system under measurement in its own process: the child's side and the parent's handle.

Each system has its own process because the peak of memory is counted per process, thread pools in one process compete,
and a crash of one system must not end the others. Calls go through a pipe one at a time, so that the parent controls
the turns.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import UserError
from ...peak_memory import peak_mb, restart_peak
from .turns import timed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import numpy as np

_GRACE = 5.0  # seconds for a child to end by itself


class System(Protocol):
    """The result of ``prepare(request)`` in the child."""

    facts: dict[str, Any]
    """Plain data for the result: counts, seconds. May hold ``inputs``, the arrays to run on."""

    def feed(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Keep the inputs, run once and return the outputs."""

    def ready(self) -> None:
        """Undo what the last run changed, before the next one; its time does not count."""

    def run(self) -> None:
        """Run once on the inputs kept."""

    def serve(self, count: int) -> tuple[float, list[float]]:
        """Run `count` times on the inputs kept, several at once; return the seconds of all, and those of each."""
        raise NotImplementedError

    def at(self, request: dict) -> dict[str, Any]:
        """Return the facts at the size of another request, of a system that was prepared for a range of sizes."""
        raise NotImplementedError

    def count(self) -> dict[str, Any]:
        """Return facts that only a run shows, like the kernels launched; {} if the system does not expose them."""
        return {}


class Child:
    """A process that prepares one system and then serves calls until it fails.

    Parameters
    ----------
    prepare : callable
        ``prepare(request) -> System``, importable by name.
    request : dict
        Picklable, with ``system``, the name for messages.
    patience : float
        Seconds that one answer may take.

    Attributes
    ----------
    failure : str or None
        One sentence: the system raised, its process ended, or it took too long.
    """

    def __init__(self, prepare: Callable[[dict], System], request: dict, patience: float):
        context = multiprocessing.get_context("spawn")  # a fork would inherit the parent's memory and threads
        self.name, self.patience, self.failure = request["system"], patience, None
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, prepare, request), daemon=True)
        self.process.start()
        theirs.close()
        self.asked = time.monotonic()

    def answer(self) -> Any:
        """Return the answer to the last call (the first is the facts of the prepared system), None after a failure."""
        if self.failure is not None:
            return None
        try:
            if not self.connection.poll(max(0.0, self.asked + self.patience - time.monotonic())):
                return self._fail(f"{self.name} gave no answer within {self.patience:.0f} s.")
            ok, content = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(_GRACE)
            return self._fail(f"{self.name} {ending(self.process.exitcode)}.")
        return content if ok else self._fail(content)

    def call(self, name: str, *arguments) -> Any:
        """Call ``feed``, ``at``, ``run`` (answers its seconds), ``serve``, or ``finish`` (last facts) in the child."""
        self.ask(name, *arguments)
        return self.answer()

    def ask(self, name: str, *arguments) -> None:
        """Start a call whose `answer` is fetched later."""
        self.asked = time.monotonic()
        with contextlib.suppress(OSError):  # the child has ended: `answer` reports how
            self.connection.send((name, arguments))

    def _fail(self, sentence: str) -> None:
        self.failure = sentence
        self.stop()  # a late system would disturb the others

    def stop(self) -> None:
        """End the process at once."""
        self.connection.close()
        self.process.terminate()
        self.process.join(_GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def ending(code: int | None) -> str:
    """Return a phrase for how a process ended: its exit code, or the signal that ended it."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by signal {name}" + (", as happens when memory runs out" if name == "SIGKILL" else "")


def _serve(connection: Connection, prepare: Callable[[dict], System], request: dict) -> None:
    """Run in the child: prepare, answer, then serve one call after the other until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent stops its children
    try:
        system = prepare(request)
        calls = _Calls(system, peak_mb())
        connection.send((True, calls.facts(system.facts)))
        while True:
            name, arguments = connection.recv()
            connection.send((True, getattr(calls, name)(*arguments)))
    except (EOFError, ConnectionError):
        return
    except UserError as error:
        connection.send((False, str(error)))
    except Exception as error:
        first = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
        connection.send((False, f"{request['system']} failed with {type(error).__name__} ({first})."))


@dataclass
class _Calls:
    """The calls that the parent can make."""

    system: System
    compile_peak: float
    peak_is_of_running: bool = False

    def facts(self, found: dict) -> dict:
        """Return facts of the system with its peak of memory until it was prepared."""
        return {**found, "peak_mb": {"compile": self.compile_peak}}

    def at(self, request: dict) -> dict:
        """Return the facts of another size."""
        return self.facts(self.system.at(request))

    def feed(self, inputs: dict) -> list[np.ndarray]:
        """Run for the first time; from here on the peak of memory is that of running."""
        self.peak_is_of_running = restart_peak()
        return self.system.feed(inputs)

    def run(self) -> float:
        self.system.ready()
        return timed(self.system.run)[0]

    def serve(self, count: int) -> tuple[float, list[float]]:
        return self.system.serve(count)

    def finish(self) -> dict:
        # Read before counting, which is not part of running.
        peak = peak_mb() if self.peak_is_of_running else None
        return {"peak_mb": {"run": peak}, **self.system.count()}  # a system in another process reports its own peak
