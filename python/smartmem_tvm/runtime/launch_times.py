# SPDX-License-Identifier: Apache-2.0
"""Time each launch of an inference on a GPU by the device's own clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..deploy.compiled import Compiled
from ..deploy.device_clock import device_clock


@dataclass(frozen=True)
class TimedLaunch:
    """One launch.

    Attributes
    ----------
    kernel : str
        The name of the kernel.
    seconds : float
        From the end of the previous launch to its own end while the device is busy, so without any time of the host.
    """

    kernel: str
    seconds: float


def kernel_seconds(compiled: Compiled, inputs: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the median seconds of the launches of each kernel, from `launch_times`."""
    found = defaultdict(list)
    for launch in launch_times(compiled, inputs):
        found[launch.kernel].append(launch.seconds)
    return {name: median(seconds) for name, seconds in found.items()}


def launch_times(compiled: Compiled, inputs: Sequence[np.ndarray]) -> list[TimedLaunch]:
    """Time every launch of one inference on a GPU, each with the arguments of that inference.

    Parameters
    ----------
    compiled : Compiled
        A model for a GPU without CUDA graphs, which hide their kernels.
    inputs : sequence of numpy.ndarray
        In the order of the model's inputs.

    Returns
    -------
    list of TimedLaunch
    """
    vm = compiled.machine()
    clock, found = device_clock(compiled.target.kind.name), []

    def watch(function, name: str, before_run: bool, _result, *arguments) -> int:
        if before_run and not name.startswith("vm.builtin."):
            found.append(TimedLaunch(name, clock.seconds(lambda: function(*arguments))))
        return 0

    main, tensors = vm["main"], vm.tensors(inputs)
    vm.set_instrument(watch)
    main(*tensors)
    return found
