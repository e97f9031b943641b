# SPDX-License-Identifier: Apache-2.0
"""The table that `smartmem tune` shows while it works."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .console import table

if TYPE_CHECKING:
    from rich.table import Table

    from ..tune.campaign import Campaign, KernelRun

_COLUMNS = ("kernel", "share", "trials", "best us", "gain", "ETA", "")
_ROWS = 20


def live_table(campaign: Campaign) -> Table:
    """The state of a campaign: the kernels with the largest shares, and whose turn it is."""
    shown, rest = campaign.kernels[:_ROWS], len(campaign.kernels) - _ROWS
    rows = [_row(campaign, kernel) for kernel in shown]
    if rest > 0:
        rows.append((f"and {rest} more", *[""] * (len(_COLUMNS) - 1)))
    left = max(0.0, campaign.deadline - time.monotonic())
    title = f"Tuning, {_duration(left)} left" if left < float("inf") else "Tuning"
    return table(title, _COLUMNS, rows, numbers=range(1, 6))


def _row(campaign: Campaign, kernel: KernelRun) -> tuple[str, ...]:
    best = kernel.best
    gain = kernel.gain if kernel.state else kernel.untuned / best if best is not None else 1.0
    return (
        kernel.name,
        f"{100 * kernel.share:.1f}%",
        f"{len(kernel.times)}/{campaign.effort.trials}",
        f"{best * 1e6:.1f}" if best is not None else "-",
        f"{gain:.2f}x",
        _eta(campaign, kernel),
        "now" if kernel is campaign.current else kernel.state,
    )


def _eta(campaign: Campaign, kernel: KernelRun) -> str:
    """How long the rest of its trials takes at most, where it has had some."""
    if kernel.state or not kernel.tried:
        return "-"
    seconds = kernel.spent / kernel.tried * (campaign.effort.trials - len(kernel.times))
    return _duration(min(seconds, max(0.0, campaign.deadline - time.monotonic())))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
