# SPDX-License-Identifier: Apache-2.0
"""The devices of a tracker's key: work is given one of them, and begun anew on another one when that is lost.

What crashes or hangs a device each time that it runs there is at fault itself. What is lost on the way to the device,
or once, says nothing of it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tvm

from ..deploy.link import linked
from ..errors import UserError
from ..executor.devices import Deadlines, Device, Devices
from ..executor.faults import NO_DEVICE
from ..executor.readings import Clock, evaluator_clock
from ..target import device_kind
from .borrow import DeviceLost
from .deployed import load_library
from .session import Session, request

_LIMITS = Deadlines(candidate=300.0, question=600.0, verdict=900.0)
_RUNNING = 30.0  # seconds that the launches of a kernel may take, of which the first one compiles
cooling: dict[str, float] = {}
"""Address of a device that this process has lost -> until when it is left alone, as `time.monotonic` counts."""
_numbers = itertools.count()
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class KernelLost(DeviceLost):
    """The device was lost while a kernel ran."""


@dataclass(frozen=True)
class TrackedDevices(Devices):
    """All devices of a key, each of which may be anybody else's in between.

    Attributes
    ----------
    tracker : str
        ``host:port``.
    key : str
        Which kind of device.
    target : tvm.target.Target or None
        What runs there; only sessions of their own (`with_session`) do without.
    timeout : float
        Seconds to wait for a free device, each time.
    threads : int or None
        Of the CPU that kernels run on; None: as the server decides.
    tries : int
        How often work is begun before its error is the caller's.
    cool_down : float
        Seconds that a lost device is left alone: servers come back at once, drivers may not.
    session_limit : float
        Seconds after which the server ends a session, 0 for never.
    """

    tracker: str
    key: str
    target: tvm.target.Target | None = None
    timeout: float = 60.0
    threads: int | None = None
    tries: int = 3
    cool_down: float = 10.0
    session_limit: float = 0.0
    limits: Deadlines = _LIMITS
    is_elsewhere: bool = True

    def patience(self, seconds: float) -> float:
        """See `Devices.patience`: a session has limits of its own, and what they say is of more use."""
        return self.tries * (self.timeout + seconds) + _RUNNING

    def with_session(self, work: Callable[[Session], Result]) -> Result:
        """The result of `work`, which gets a session and begins anew with each; by any thread.

        Raises
        ------
        DeviceLost
            If that happened to every try.
        UserError
            If there is no device to try on.
        Exception
            Whatever else `work` raises, at the first time.
        """
        for left in reversed(range(self.tries)):
            try:
                # What others learn while this one waits for a device counts for it too.
                options = {"limit": self.session_limit, "avoid": cooling}
                with request(self.tracker, self.key, self.timeout, **options) as session:
                    return work(session)
            except DeviceLost as error:
                cooling[error.address] = time.monotonic() + self.cool_down
                if not left:
                    raise
                _log.warning("%s Trying again.", error)
        raise ValueError("work that is to be tried no times")

    def run(self, work: Callable[[Device], Result], seconds: float = math.inf) -> Result:
        """See `Devices.run`.

        Raises
        ------
        KernelLost
            If what runs there has lost every device that it was tried on.
        UserError
            If there is no device, which `executor.faults` knows to be no fault of the work's.
        """

        def limited(session: Session) -> Result:
            with session.limit(seconds, "all that was to be done there"):
                if self.threads is not None:
                    session.use_threads(self.threads)
                return work(RemoteDevice(session, self.target))

        try:
            return self.with_session(limited)
        except KernelLost:
            raise
        except UserError as error:
            raise UserError(f"{NO_DEVICE}: {error}") from error


class RemoteDevice(Device):
    """The device of a session."""

    def __init__(self, session: Session, target: tvm.target.Target):
        self.session, self.target, self.address = session, target, session.address
        self.device = session.device(device_kind(target))

    def load(self, code: Any) -> Any:
        """Link what is not a file yet for the CPU there, send it, and load it."""
        with tempfile.TemporaryDirectory() as folder:
            file = code if isinstance(code, Path) else Path(linked(code, self.target, folder))
            # A library that is in use must not be overwritten by the next one.
            return load_library(self.session, file, self.target, f"kernel{next(_numbers)}{file.suffix}")

    def clock(self, code: Any, name: str, sets: Sequence[Sequence], handing_over: bool = False) -> Clock:
        """The clock of the device's machine."""
        return evaluator_clock(code, name, self.device, sets)

    @contextlib.contextmanager
    def running(self, kernels: int = 1, seconds: float | None = None) -> Iterator[None]:
        """So many kernels run inside; if the device is lost there, they have done that."""
        try:
            with self.session.limit(seconds or _RUNNING * kernels, "a kernel"):
                yield
        except DeviceLost as error:
            raise KernelLost(str(error), error.address) from error

    def transfer(self, size: int, what: str) -> contextlib.AbstractContextManager[None]:
        """A limit for sending so many bytes."""
        return self.session.transfer(size, what)
