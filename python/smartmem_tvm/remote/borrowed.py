# SPDX-License-Identifier: Apache-2.0
"""Kernels measured on a device that is borrowed from a tracker for each of them; in worker processes.

What crashes or hangs a device each time that it runs there is at fault itself. What is lost on the way to the device,
or once, says nothing of it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TypeVar

from tvm.target import Target

from ..deploy.link import linked
from ..deploy.measure import in_turns
from ..deploy.place import Place, Ready
from ..deploy.weights import Machine, Weight
from ..errors import UserError
from ..target import has_textures
from ..tune.faults import NO_DEVICE
from ..tune.parameters import arguments, read_parameters
from ..tune.runner import kept
from .attempts import Attempts
from .borrow import DeviceLost
from .deployed import kind_of, load_library
from .session import Session

TRIES = 2
_COOL_DOWN = 3.0  # seconds for a device that hung or crashed: servers come back at once, drivers may not
_RUNNING = 30.0  # seconds that the launches of a kernel may take, of which the first one compiles
_CANDIDATE, _VERDICT = 300.0, 900.0  # seconds for all that is done for one: compilations, transfers, launches
_READING, _READINGS, _FEWEST, _LONGEST = 1e-3, 50, 3, 0.25  # seconds and numbers, as of candidates measured here
_TURNS = 20
_numbers = itertools.count()
Result = TypeVar("Result")


class KernelLost(DeviceLost):
    """The device was lost while a kernel ran."""


@dataclass(frozen=True)
class Borrowed:
    """Any device of a key, for as long as one kernel needs it; others may have it in between.

    Attributes
    ----------
    tracker : str
        ``host:port``.
    key : str
    timeout : float
        Seconds to wait for a free device.
    threads : int or None
        Of the CPU that kernels run on; None: as the server decides.
    """

    tracker: str
    key: str
    timeout: float = 60.0
    threads: int | None = None

    @property
    def patience(self) -> float:
        """Seconds after which a worker that measures a candidate must hang itself."""
        return TRIES * (self.timeout + _CANDIDATE) + _RUNNING

    @property
    def patience_of_verdicts(self) -> float:
        """Seconds after which a worker that compares kernels must hang itself."""
        return TRIES * (self.timeout + _VERDICT) + _RUNNING

    def run(self, work: Callable[[Session], Result], seconds: float = _VERDICT) -> Result:
        """The result of work on a device, which may take so long there.

        Raises
        ------
        KernelLost
            If what runs there has lost every device that it was tried on.
        UserError
            If there is no device, which `tune.faults` knows to be no fault of a candidate's.
        """

        def limited(session: Session) -> Result:
            with session.limit(seconds, "all that was to be done there"):
                if self.threads is not None:
                    session.use_threads(self.threads)
                return work(session)

        try:
            return _attempts(self.tracker, self.key, self.timeout).run(limited)
        except KernelLost:
            raise
        except UserError as error:
            raise UserError(f"{NO_DEVICE}: {error}") from error

    def seconds(self, job: tuple[str, str]) -> list[float]:
        """A `tune.runner.Measure`: times of a candidate that `deploy.link.linked` wrote."""
        artifact, kind = Path(job[0]), job[1]
        return self.run(lambda session: _candidate_seconds(session, artifact, kind), _CANDIDATE)

    def at(self, target: Target, work: Callable[[Place], Result]) -> Result:
        """A `deploy.place.At`: one device for all that is compared."""
        return self.run(lambda session: work(_There(session, target)))


@cache
def _attempts(tracker: str, key: str, timeout: float) -> Attempts:
    """Those of this process, which knows what devices it has lost."""
    return Attempts(tracker, key, tries=TRIES, cool_down=_COOL_DOWN, timeout=timeout)


@contextlib.contextmanager
def _running(session: Session, kernels: int = 1) -> Iterator[None]:
    """So many kernels run inside."""
    try:
        with session.limit(_RUNNING * kernels, "a kernel"):
            yield
    except DeviceLost as error:
        raise KernelLost(str(error), error.address) from error


def _candidate_seconds(session: Session, artifact: Path, kind: str) -> list[float]:
    device = session.device(kind)
    module = session.load(session.upload(artifact))
    with _running(session):
        tensors = arguments(read_parameters(artifact), device)

        def times(number: int, repeat: int) -> list[float]:
            return list(module.time_evaluator("main", device, number=number, repeat=repeat)(*tensors).results)

        first = times(1, _FEWEST)
        return kept(first if sum(first) > _LONGEST else times(*_counts(max(1e-7, median(first)))))


def _counts(once: float) -> tuple[int, int]:
    """Launches for a reading of the clock, and readings."""
    number = math.ceil(_READING / once)
    return number, max(_FEWEST, min(_READINGS, int(_LONGEST / (number * once))))


@dataclass(frozen=True)
class _There:
    """The device of a session as a `deploy.place.Place`."""

    session: Session
    target: Target

    def put(self, code, weights: Sequence[Weight], inputs: Sequence[Weight]) -> Ready:
        device = self.session.device(kind_of(self.target))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(linked(code, self.target, folder))
            # A library that is in use must not be overwritten by the next one.
            name = f"kernel{next(_numbers)}{file.suffix}"
            library = load_library(self.session, file, self.target, name)
        with self.session.transfer(sum(each.nbytes for each in (*weights, *inputs)), "what a kernel reads"):
            machine = Machine(library, weights, device, has_textures(self.target))
            return _ReadyThere(machine, [each.on(device) for each in inputs], self.session)

    def seconds(self, models: Sequence[Ready]) -> list[float]:
        with _running(self.session, len(models)):
            return in_turns([_clock(each) for each in models], _TURNS)


def _clock(model: Ready) -> Callable[[int], float]:
    return lambda times: model.machine.timed(model.tensors, 1, calls=times)[0] * times


@dataclass(frozen=True)
class _ReadyThere(Ready):
    session: Session

    def outputs(self) -> list:
        with _running(self.session):
            return super().outputs()
