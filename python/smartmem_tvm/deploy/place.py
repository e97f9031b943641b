# SPDX-License-Identifier: Apache-2.0
"""Where compiled kernels run that are to be compared: on a device of this machine, or of another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeVar

import numpy as np
import tvm
from tvm.target import Target

from ..target import device_of, has_textures, is_gpu
from .build import to_numpy
from .device_clock import device_clock
from .measure import interleaved
from .weights import Machine, Weight

_TURNS = 20
Result = TypeVar("Result")


@dataclass(frozen=True)
class Ready:
    """A model on its device, with its inputs there."""

    machine: Machine
    tensors: Sequence[tvm.runtime.Tensor]

    def outputs(self) -> list[np.ndarray]:
        """The results of one inference."""
        return to_numpy(self.once())

    def once(self):
        """Run it, and leave the results on the device."""
        return self.machine["main"](*self.tensors)

    def launch(self, times: int) -> None:
        """Run it so often, until the device is done."""
        for _ in range(times):
            self.once()
        self.machine.device.sync()


class Place(Protocol):
    """Where kernels run."""

    def put(self, code, weights: Sequence[Weight], inputs: Sequence[Weight]) -> Ready:
        """Bring a compiled model there."""

    def seconds(self, models: Sequence[Ready]) -> list[float]:
        """Median seconds of an inference of each, taken in turns."""


At = Callable[[Target, Callable[[Place], Result]], Result]
"""Does work at a place that runs code for a target (`here`, `remote.borrowed.Borrowed.at`)."""


def here(target: Target, work: Callable[[Place], Result]) -> Result:
    """Do work on this machine.

    Raises
    ------
    UserError
        If there is no such device.
    """
    return work(_Here(target))


@dataclass(frozen=True)
class _Here:
    target: Target

    def put(self, code, weights: Sequence[Weight], inputs: Sequence[Weight]) -> Ready:
        machine = Machine(code, weights, device_of(self.target), has_textures(self.target))
        return Ready(machine, [each.on(machine.device) for each in inputs])

    def seconds(self, models: Sequence[Ready]) -> list[float]:
        if not is_gpu(self.target):
            return interleaved([each.launch for each in models], _TURNS)
        clock = device_clock(self.target.kind.name)
        turns = [[clock.seconds(each.once) for each in models] for _ in range(1 + _TURNS)]
        return [median(times) for times in zip(*turns[1:])]  # the first turn warms up
