# SPDX-License-Identifier: Apache-2.0
"""Run work on the devices of a tracker's key, and start again on another device if one is lost.

Work that crashes or hangs a device on every try is itself at fault. A single loss, or one before the work runs, does
not count against it.
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
from ..executor.faults import NO_DEVICE
from ..executor.job_devices import Deadlines, Device, Devices
from ..executor.readings import Clock, evaluator_clock
from ..target import device_kind
from .borrow import DeviceLost
from .deployed import load_library
from .session import Session, request

_LIMITS = Deadlines(candidate=300.0, question=600.0, verdict=900.0)
_RUNNING = 30.0  # seconds for the launches of a kernel; the first launch compiles it
cooling: dict[str, float] = {}
"""Address of a device that this process has lost -> the value of `time.monotonic` until which it is not used."""
_numbers = itertools.count()
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class KernelLost(DeviceLost):
    """The device was lost while a kernel ran."""


@dataclass(frozen=True)
class TrackedDevices(Devices):
    """All devices of a key; between two uses a device may serve other clients.

    Attributes
    ----------
    tracker : str
        ``host:port``.
    key : str
        The kind of device.
    target : tvm.target.Target or None
        The target of code that runs there; may be None only for `with_session`.
    timeout : float
        Seconds to wait for a free device, each time.
    threads : int or None
        Threads of kernels on a CPU; None: the server's default.
    tries : int
        Number of times that work is started before its error is raised.
    cool_down : float
        Seconds for which a lost device is not used: servers recover at once, drivers may not.
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
        """See `Devices.patience`: longer than a session's own limits, whose errors are more precise."""
        return self.tries * (self.timeout + seconds) + _RUNNING

    def with_session(self, work: Callable[[Session], Result]) -> Result:
        """Run `work` on a session and return its result; start it again on each new session; callable by any thread.

        Raises
        ------
        DeviceLost
            If every try lost its device.
        UserError
            If there is no device.
        Exception
            Any other error of `work`, at its first occurrence.
        """
        for left in reversed(range(self.tries)):
            try:
                # Shared, so that devices that other threads lose during the wait are avoided, too.
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
        """Run work as in `Devices.run`.

        Raises
        ------
        KernelLost
            If the work lost every device that it ran on.
        UserError
            If there is no device; `executor.faults` does not count this against the work.
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
        """Link code that is not yet a file for the server's CPU, upload it, and load it."""
        with tempfile.TemporaryDirectory() as folder:
            file = code if isinstance(code, Path) else Path(linked(code, self.target, folder))
            # A new name: the next library must not overwrite one that is in use.
            return load_library(self.session, file, self.target, f"kernel{next(_numbers)}{file.suffix}")

    def clock(self, code: Any, name: str, sets: Sequence[Sequence], handing_over: bool = False) -> Clock:
        """Return the clock of the device's machine."""
        return evaluator_clock(code, name, self.device, sets)

    @contextlib.contextmanager
    def running(self, kernels: int = 1, seconds: float | None = None) -> Iterator[None]:
        """Mark a block that runs `kernels` kernels: they are blamed if the device is lost inside."""
        try:
            with self.session.limit(seconds or _RUNNING * kernels, "a kernel"):
                yield
        except DeviceLost as error:
            raise KernelLost(str(error), error.address) from error

    def transfer(self, size: int, what: str) -> contextlib.AbstractContextManager[None]:
        """Return a limit for sending `size` bytes."""
        return self.session.transfer(size, what)
