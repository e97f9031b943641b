# SPDX-License-Identifier: Apache-2.0
"""Measure the latency of other systems roughly and within a time limit, for a line beside other figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from .child import Child, System
from .turns import timed

if TYPE_CHECKING:
    import numpy as np

_LONG = 1.0  # seconds: a run this long is measured once, as the extra work of a first run is negligible beside it


def latencies(
    prepare: Callable[[dict], System],
    requests: Sequence[dict],
    inputs: Mapping[str, np.ndarray],
    runs: int,
    patience: float,
) -> dict[str, dict]:
    """Run each system in its own process, one after the other.

    Parameters
    ----------
    prepare
        As in `tools.bench.measure_systems.Method`.
    requests
        One for each system, with its name under ``system``.
    inputs
        Input name -> array, in the order of the model's inputs.
    runs : int
        Runs of each system that takes less than a second.
    patience : float
        Seconds that one step of a system may take.

    Returns
    -------
    dict
        System -> ``latency_ms`` (median) and ``runs``; or ``error``, one sentence.
    """
    found = {}
    for request in requests:
        child = Child(prepare, request, patience)
        try:
            child.answer()
            seconds = [timed(lambda child=child: child.call("feed", dict(inputs)))[0]]
            if child.failure is None and seconds[0] < _LONG:
                seconds = [child.call("run") or 0.0 for _ in range(runs)]
            facts = {"latency_ms": median(seconds) * 1e3, "runs": len(seconds)}
            found[child.name] = facts if child.failure is None else {"error": child.failure}
        finally:
            child.stop()
    return found
