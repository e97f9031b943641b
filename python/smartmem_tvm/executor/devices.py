# SPDX-License-Identifier: Apache-2.0
"""Devices as jobs get them, whatever machine they are of, and who has the jobs done."""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import tvm
from tvm.target import Target

from ..errors import UserError
from .readings import Clock
from .workers import Answer, Workers

Result = TypeVar("Result")


@dataclass(frozen=True)
class Deadlines:
    """Seconds for all that is done on a device for one job: compilations there, transfers, launches."""

    candidate: float
    question: float
    verdict: float


class Device(ABC):
    """A device that is a job's for some time.

    Attributes
    ----------
    target : Target
        What runs there.
    device : tvm.runtime.Device
    address : str
        Its server's; empty for one of this machine.
    """

    target: Target
    device: tvm.runtime.Device
    address: str = ""

    @abstractmethod
    def load(self, code: Any) -> Any:
        """Functions that can be called there, of what was compiled here: a module, an executable, or the file of it."""

    @abstractmethod
    def clock(self, code: Any, name: str, sets: Sequence[Sequence], handing_over: bool = False) -> Clock:
        """A clock around launches of a function of what was loaded, with one set of arguments after the other.

        Parameters
        ----------
        handing_over : bool
            What it takes to hand a launch over is in the time, where the clock is this machine's.
        """

    def running(self, kernels: int = 1, seconds: float | None = None) -> contextlib.AbstractContextManager:
        """So many kernels run inside, in seconds that are usual for as many or given."""
        return contextlib.nullcontext()

    def transfer(self, size: int, what: str) -> contextlib.AbstractContextManager:
        """So many bytes are sent inside."""
        return contextlib.nullcontext()


class Devices(ABC):
    """One kind of device, of which jobs get one at a time; picklable.

    Attributes
    ----------
    target : Target
        What runs there.
    limits : Deadlines
    is_elsewhere : bool
        They are of other machines.
    """

    target: Target
    limits: Deadlines
    is_elsewhere: bool = False

    @abstractmethod
    def run(self, work: Callable[[Device], Result], seconds: float = math.inf) -> Result:
        """The result of work on a device, which it may take so long; begun anew on another one if it loses the first.

        Raises
        ------
        UserError
            If there is no device.
        """

    def patience(self, seconds: float) -> float:
        """Seconds after which a worker must hang itself whose work on a device may take so long."""
        return seconds


@dataclass(frozen=True)
class Executor:
    """Has jobs done on devices, each in a worker with a deadline.

    Attributes
    ----------
    devices : Devices
    workers : Workers
        One for each device that is used at a time.
    name, driver : str
        Of a device; the others are taken to be like it.
    threads : int
        Of a CPU.
    """

    devices: Devices
    workers: Workers
    name: str = ""
    driver: str = ""
    threads: int = 0

    def map(self, function: Callable[[Devices, Any], Any], jobs: Sequence, seconds: float) -> list[Answer]:
        """The answer of ``function(devices, job)`` to each job.

        Parameters
        ----------
        function : callable
            Of a module, which workers import; it asks `devices` for one. Jobs and results are picklable.
        seconds : float
            That a job may take on a device.
        """
        return self.workers.map(partial(function, self.devices), jobs, self.devices.patience(seconds))

    def result(self, function: Callable[[Devices, Any], Any], job: Any, seconds: float) -> Any:
        """The same for one job; `Answer.result` has the errors."""
        (answer,) = self.map(function, [job], seconds)
        return answer.result()

    def results(
        self, function: Callable[[Devices, Any], Any], jobs: Sequence, seconds: float, end: float = math.inf
    ) -> Iterator[tuple[int, Any]]:
        """The number of each job with its result, or with the error that is its fault: as they are done.

        Parameters
        ----------
        end : float
            Until when jobs are begun, as `time.monotonic` counts.

        Raises
        ------
        UserError
            If the machine failed, when all that had begun are done: what is wrong for one job is so for all.
        """
        failed: list[UserError] = []
        answers = self.workers.as_done(
            partial(function, self.devices),
            jobs,
            self.devices.patience(seconds),
            lambda: not failed and time.monotonic() <= end,
        )
        with contextlib.closing(answers):
            for number, answer in answers:
                try:
                    result = answer.result()
                except UserError as error:
                    failed.append(error)
                except RuntimeError as error:
                    yield number, error
                else:
                    yield number, result
        if failed:
            raise failed[0]
