# SPDX-License-Identifier: Apache-2.0
"""What `smartmem profile` measures, on the devices of a key: each question on one of them, in a session of its own."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from ..deploy.link import linked
from ..deploy.measure import Kernels, in_turns
from ..deploy.weights import Weight
from ..errors import UserError
from .attempts import Attempts
from .borrow import DeviceLost
from .deployed import kind_of, load_library
from .session import Session

_RUNNING = 120.0  # seconds: kernels without a rule of their own take long, and drivers compile at the first launch


@dataclass(frozen=True)
class Library:
    """Kernels on their way to a device: linked, with their data."""

    file: Path
    data: Mapping[str, Sequence[Weight]]


class Lent:
    """The devices of a key, each of which measures one question at a time; a `deploy.texture_times.Elsewhere`.

    Parameters
    ----------
    attempts : Attempts
        Borrows a device for each question, and another one if it is lost.
    target : Target
        What runs there.
    lanes : int
        Devices that may measure at a time.
    threads : int, optional
        That kernels run on where the target is a CPU; by default as the server decides.
    limit : float
        Seconds that a device may take for a question when it has received the kernels.

    Attributes
    ----------
    measured : collections.Counter
        Address of a server -> questions that were measured there.
    """

    def __init__(
        self,
        attempts: Attempts,
        target: Target,
        lanes: int = 1,
        threads: int | None = None,
        limit: float = _RUNNING,
    ):
        self._attempts, self._target, self.lanes = attempts, target, lanes
        self._threads, self._limit = threads, limit
        self._folder = tempfile.TemporaryDirectory(prefix="smartmem-profile-")
        self.measured: Counter[str] = Counter()

    def __enter__(self) -> Lent:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def prepare(self, kernels: Kernels) -> Library:
        """Link kernels for the device's CPU, or the one beside it."""
        folder = tempfile.mkdtemp(dir=self._folder.name)
        return Library(Path(linked(kernels.code, self._target, folder)), kernels.data)

    def seconds(self, library: Library, sets: int = 1, turns: int = 100) -> list[float]:
        """Median seconds of a launch of each kernel by the device's own clock, taken in turns; by any thread.

        Parameters
        ----------
        sets : int
            Of arguments, which take turns.
        turns : int
            Readings of the clock for each kernel, if they do not take too long.

        Raises
        ------
        RuntimeError
            If the kernels lose every device that they are tried on, or show no time.
        UserError
            If there is no device.
        """
        ran = []

        def work(session: Session) -> list[float]:
            code = load_library(session, library.file, self._target)
            ran.append(session.address)
            with session.limit(self._limit, "the kernels of a question"):
                return in_turns(self._clocks(session, code, library.data, sets), turns)

        try:
            found = self._attempts.run(work)
        except UserError as error:
            if isinstance(error, DeviceLost) and ran:
                raise RuntimeError(str(error)) from error
            raise UserError(str(error)) from error  # TVM's passes hand on no errors that derive from it
        finally:
            library.file.unlink(missing_ok=True)
        if min(found) <= 0:
            raise RuntimeError("the device's clock shows no time")
        self.measured[ran[-1]] += 1
        return found

    def _clocks(self, session: Session, code: Any, data: Mapping, sets: int) -> list[Callable[[int], float]]:
        device = session.device(kind_of(self._target))
        if self._threads is not None:
            session.use_threads(self._threads)
        return [
            _clock(code, name, device, [[each.on(device) for each in weights] for _ in range(sets)])
            for name, weights in data.items()
        ]


def _clock(code: Any, name: str, device: tvm.runtime.Device, sets: Sequence[Sequence]) -> Callable[[int], float]:
    """Seconds that so many launches take, one set of arguments after the other; asked for in one message."""
    evaluator = cache(lambda times: code.time_evaluator(name, device, number=times, repeat=1))
    turns = itertools.cycle(sets)
    return lambda times: evaluator(times)(*next(turns)).mean * times
