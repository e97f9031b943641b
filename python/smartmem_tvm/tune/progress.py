# SPDX-License-Identifier: Apache-2.0
"""Progress of a tuning campaign: its state, its remaining time, and its results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .campaign import Campaign, KernelRun


def headline(campaign: Campaign) -> str:
    """Return the state of a campaign in one line."""
    kernels = campaign.kernels
    done = sum(bool(kernel.state) for kernel in kernels)
    trials = sum(kernel.tried for kernel in kernels)
    left = time_left(campaign)
    time_text = f", at most {duration(left)} left" if left < float("inf") else ""
    gain = 1 / sum(kernel.share / gain_so_far(kernel) for kernel in kernels)
    now = f"; now {campaign.current.name}" if campaign.current is not None else ""
    return f"{done} of {len(kernels)} kernels done, {trials} trials, {gain:.2f}x so far{time_text}{now}"


def gain_so_far(kernel: KernelRun) -> float:
    """Return the judged speedup of a kernel, or before that the measured one, at least 1."""
    if kernel.state or kernel.best is None:
        return kernel.gain
    return max(kernel.gain, kernel.untuned / kernel.best)


def time_left_of(campaign: Campaign, kernel: KernelRun) -> float | None:
    """Return the most seconds for the rest of a kernel's trials, at its own pace or that of all; None if unknown."""
    paced = [kernel] if kernel.tried else campaign.kernels
    tried = sum(each.tried for each in paced)
    if kernel.state or not tried:
        return None if not tried else 0.0
    return sum(each.spent for each in paced) / tried * max(0, campaign.effort.trials - len(kernel.times))


def time_left(campaign: Campaign) -> float:
    """Return the seconds until all trials are done or the time is up; infinite if unknown."""
    until = campaign.deadline - time.monotonic()
    known = [time_left_of(campaign, kernel) for kernel in campaign.kernels]
    return max(0.0, until if None in known else min(until, sum(known)))


def duration(seconds: float) -> str:
    """Format seconds as hours (if any), minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def tuned_models(campaign: Campaign) -> list[str]:
    """Return the names of the models of all kernels."""
    return sorted({model for kernel in campaign.kernels for model in kernel.shares})


def result_data(campaign: Campaign, models: Mapping[str, Path]) -> dict:
    """Return the results of a campaign as plain data."""
    from .kernel_run import gain_of

    named = tuned_models(campaign)
    gains = {model: gain_of(campaign.kernels, model) for model in named}
    return {
        "records": str(campaign.records.path),
        "threads": campaign.records.where["threads"],
        "stopped": campaign.stopping,
        "gain": gain_of(campaign.kernels),
        "models": [
            {"name": name, "model": str(path), "gain": gains[name if len(models) > 1 else ""]}
            for name, path in models.items()
            if len(models) == 1 or name in named
        ],
        "kernels": [
            {**_kernel_data(kernel, next(iter(models))), "order": _order(campaign, kernel)}
            for kernel in campaign.kernels
        ],
    }


def _order(campaign: Campaign, kernel: KernelRun) -> dict | None:
    """Return `modelled.OrderChange` of a kernel; None if no modelled candidate of it was measured."""
    from .records import workload_key

    change = campaign.records.order_change(workload_key(kernel.task.mod))
    return change.as_dict() if change is not None else None


def _kernel_data(kernel: KernelRun, only: str) -> dict:
    return {
        "names": list(kernel.task.names),
        "models": {name or only: share for name, share in kernel.shares.items()},
        "launches": kernel.task.launches,
        "share": kernel.share,
        "trials": len(kernel.times),
        "tried_now": kernel.tried,
        "failed": kernel.times.count(None),
        "machine_failed": kernel.machine_failed,
        "wrong": kernel.wrong,
        "untuned_us": kernel.untuned * 1e6,
        "best_us": kernel.best * 1e6 if kernel.best is not None else None,
        "gain": kernel.gain,
        "state": kernel.state,
    }
