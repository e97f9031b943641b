# SPDX-License-Identifier: Apache-2.0
"""The share of an inference's time in kernels that take far longer than their roofline bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from ...deploy.compiled import Compiled
    from ...runtime.kernel_times import KernelTime
    from ...runtime.launch_times import TimedLaunch

_FACTS = ("kernel", "rule", "launches", "seconds", "share", "bound_seconds", "bound_by", "of_roofline", "off")


def slow_kernels(
    compiled: Compiled, inputs: Sequence[np.ndarray], launches: Sequence[TimedLaunch] | None = None
) -> dict:
    """Return facts for a result file.

    Parameters
    ----------
    compiled : Compiled
        A model whose kernels are launched one by one.
    inputs : sequence of numpy.ndarray
        In the order of the model's inputs.
    launches : sequence of TimedLaunch, optional
        The launches of one inference, timed by a clock of the device; otherwise kernels are timed by the host.

    Returns
    -------
    dict
        ``slow_share``, and ``slow_kernels``: the entries of `runtime.kernel_bounds.add_bounds` for those kernels;
        ``of_roofline``, the sum of all bounds over the time of their kernels, None if no kernel has a bound. Empty if
        the speed of the device is unknown.
    """
    from ...runtime.kernel_bounds import add_bounds, kernel_bounds, slowest
    from ...runtime.kernel_times import kernel_times, schedule_report
    from ...runtime.speed import speed_of

    speed = speed_of(compiled.target)
    if speed is None:
        return {}
    if launches is not None:
        speed = replace(speed, launch=0.0)  # the times do not include the host
    times = kernel_times(compiled, inputs) if launches is None else _added_up(launches)
    report = add_bounds(schedule_report(compiled.rules, times), kernel_bounds(compiled.graph, speed), speed)
    found = [{name: each[name] for name in _FACTS} for each in slowest(report["kernels"])]
    bounded = [each for each in report["kernels"] if each["of_roofline"] is not None]
    seconds, bounds = (sum(each[name] for each in bounded) for name in ("seconds", "bound_seconds"))
    whole = {"of_roofline": bounds / seconds if bounded else None}
    return {"slow_share": report["slow_share"], "slow_kernels": found, **whole}


def _added_up(launches: Sequence[TimedLaunch]) -> dict[str, KernelTime]:
    from ...runtime.kernel_times import KernelTime

    found: dict[str, KernelTime] = {}
    for each in launches:
        time = found.setdefault(each.kernel, KernelTime())
        time.launches += 1
        time.seconds += each.seconds
    return found
