# SPDX-License-Identifier: Apache-2.0
"""Devices for jobs, on any machine, and the executor that runs jobs on them."""

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
    """Seconds for the work of one job on a device: compilation there, transfers, launches."""

    candidate: float
    question: float
    verdict: float


class Device(ABC):
    """A device that a job holds for some time.

    Attributes
    ----------
    target : Target
        Target of the code that runs there.
    device : tvm.runtime.Device
    address : str
        Address of its server; empty for a device of this machine.
    """

    target: Target
    device: tvm.runtime.Device
    address: str = ""

    @abstractmethod
    def load(self, code: Any) -> Any:
        """Load code that was compiled here, as a module, an executable or a file, and return callable functions."""

    @abstractmethod
    def clock(self, code: Any, name: str, sets: Sequence[Sequence], handing_over: bool = False) -> Clock:
        """Return a clock for launches of a loaded function, which uses the sets of arguments in turns.

        Parameters
        ----------
        handing_over : bool
            Whether the time includes the submission of a launch, if the clock is this machine's.
        """

    def running(self, kernels: int = 1, seconds: float | None = None) -> contextlib.AbstractContextManager:
        """Return a context in which kernels run, for the given seconds or those usual for this number of kernels."""
        return contextlib.nullcontext()

    def transfer(self, size: int, what: str) -> contextlib.AbstractContextManager:
        """Return a context in which `size` bytes are sent."""
        return contextlib.nullcontext()


class Devices(ABC):
    """One kind of device; a job gets one of them at a time. Picklable.

    Attributes
    ----------
    target : Target
        Target of the code that runs there.
    limits : Deadlines
    is_elsewhere : bool
        Whether the devices belong to other machines.
    """

    target: Target
    limits: Deadlines
    is_elsewhere: bool = False

    @abstractmethod
    def run(self, work: Callable[[Device], Result], seconds: float = math.inf) -> Result:
        """Return the result of `work` on a device, within some seconds; restart it on another if the device is lost.

        Raises
        ------
        UserError
            If there is no device.
        """

    def patience(self, seconds: float) -> float:
        """Return the seconds after which a worker counts as hanging if its work on a device may take `seconds`."""
        return seconds


@dataclass(frozen=True)
class Executor:
    """Runs jobs on devices, each in a worker with a deadline.

    Attributes
    ----------
    devices : Devices
    workers : Workers
        One worker for each device in use at the same time.
    name, driver : str
        Name and driver of one device; all others are assumed to be equal.
    threads : int
        Threads of a CPU.
    """

    devices: Devices
    workers: Workers
    name: str = ""
    driver: str = ""
    threads: int = 0

    def map(self, function: Callable[[Devices, Any], Any], jobs: Sequence, seconds: float) -> list[Answer]:
        """Return the answer of ``function(devices, job)`` for each job.

        Parameters
        ----------
        function : callable
            Function at the top level of a module, which workers import; it requests a device from `devices`. Jobs and
            results must be picklable.
        seconds : float
            Seconds that a job may take on a device.
        """
        return self.workers.map(partial(function, self.devices), jobs, self.devices.patience(seconds))

    def result(self, function: Callable[[Devices, Any], Any], job: Any, seconds: float) -> Any:
        """Return the result of one job; for errors see `Answer.result`."""
        (answer,) = self.map(function, [job], seconds)
        return answer.result()

    def results(
        self, function: Callable[[Devices, Any], Any], jobs: Sequence, seconds: float, end: float = math.inf
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number of each job with its result, or with its own error, in the order of completion.

        Parameters
        ----------
        end : float
            Time (`time.monotonic`) after which no job begins.

        Raises
        ------
        UserError
            If the machine failed, which affects all jobs; raised after the running jobs are done.
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
