# SPDX-License-Identifier: Apache-2.0
"""What `smartmem tune` shows: a table while it works, lines where there is no terminal, and what came of it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .console import table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..tune.campaign import Campaign, KernelRun

_ROWS = 20
_MINUTE = 60.0


@contextlib.contextmanager
def show_progress(campaign: Campaign) -> Iterator[Callable[[Campaign], None]]:
    """What a campaign is to call.

    It shows a live table if stderr is a terminal; otherwise a line when a kernel is done, and one a minute.
    """
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    # stdout leads to stderr already while a command works, and must not be caught a second time.
    options = {"console": Console(stderr=True), "transient": True, "redirect_stdout": False, "refresh_per_second": 2}
    with Live(get_renderable=lambda: live_table(campaign), **options) as live:
        yield lambda _: live.refresh()


class _Lines:
    """Tells where a campaign is."""

    def __init__(self):
        self._done, self._last = 0, time.monotonic()

    def __call__(self, campaign: Campaign) -> None:
        done = sum(bool(kernel.state and kernel.tried) for kernel in campaign.kernels)
        if done > self._done or time.monotonic() >= self._last + _MINUTE:
            self._done, self._last = done, time.monotonic()
            print(f"smartmem: {headline(campaign)}", file=sys.stderr, flush=True)


def headline(campaign: Campaign) -> str:
    """Where a campaign is, in one line."""
    kernels = campaign.kernels
    done = sum(bool(kernel.state) for kernel in kernels)
    trials = sum(kernel.tried for kernel in kernels)
    left = time_left(campaign)
    time_text = f", at most {_duration(left)} left" if left < float("inf") else ""
    gain = 1 / sum(kernel.share / gain_so_far(kernel) for kernel in kernels)
    now = f"; now {campaign.current.name}" if campaign.current is not None else ""
    return f"{done} of {len(kernels)} kernels done, {trials} trials, {gain:.2f}x so far{time_text}{now}"


def live_table(campaign: Campaign) -> Table:
    """The state of a campaign: the kernels with the largest shares, and whose turn it is."""
    many = len(_models(campaign)) > 1
    shown, rest = campaign.kernels[:_ROWS], len(campaign.kernels) - _ROWS
    rows = [_row(campaign, kernel) for kernel in shown]
    if rest > 0:
        rows.append((f"and {rest} more", *[""] * 7))
    columns = ("kernel", "share", "trials", "untuned us", "best us", "gain", "time left", "")
    if many:
        columns = (columns[0], "models", *columns[1:])
        models = [_model_text(kernel.shares) for kernel in shown] + [""] * (rest > 0)
        rows = [(row[0], each, *row[1:]) for row, each in zip(rows, models, strict=True)]
    return table(f"Tuning: {headline(campaign)}", columns, rows, numbers=range(1 + many, 7 + many))


def _row(campaign: Campaign, kernel: KernelRun) -> tuple[str, ...]:
    best, left = kernel.best, _time_left_of(campaign, kernel)
    return (
        kernel.name,
        f"{100 * kernel.share:.1f}%",
        f"{len(kernel.times)}/{campaign.effort.trials}",
        f"{kernel.untuned * 1e6:.1f}",
        f"{best * 1e6:.1f}" if best is not None else "-",
        f"{gain_so_far(kernel):.2f}x",
        _duration(left) if left is not None and not kernel.state else "-",
        "now" if kernel is campaign.current and not kernel.state else kernel.state,
    )


def gain_so_far(kernel: KernelRun) -> float:
    """As it was judged, or until then as it was measured; a kernel may always stay as it is."""
    if kernel.state or kernel.best is None:
        return kernel.gain
    return max(kernel.gain, kernel.untuned / kernel.best)


def _time_left_of(campaign: Campaign, kernel: KernelRun) -> float | None:
    """Seconds that the rest of a kernel's trials takes at most, at the pace of its own or of all; None if unknown."""
    paced = [kernel] if kernel.tried else campaign.kernels
    tried = sum(each.tried for each in paced)
    if kernel.state or not tried:
        return None if not tried else 0.0
    return sum(each.spent for each in paced) / tried * max(0, campaign.effort.trials - len(kernel.times))


def time_left(campaign: Campaign) -> float:
    """Seconds until all trials are done or the time is up; infinite while nothing is known."""
    until = campaign.deadline - time.monotonic()
    known = [_time_left_of(campaign, kernel) for kernel in campaign.kernels]
    return max(0.0, until if None in known else min(until, sum(known)))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _models(campaign: Campaign) -> list[str]:
    return sorted({model for kernel in campaign.kernels for model in kernel.shares})


def _model_text(shares: Mapping[str, float]) -> str:
    return ", ".join(shares) if len(shares) < 3 else f"{len(shares)} models"


def result_data(campaign: Campaign, models: Mapping[str, Path]) -> dict:
    """What came of a campaign, as plain data."""
    from ..tune.kernel_run import gain_of

    named = _models(campaign)
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
        "kernels": [_kernel_data(kernel, next(iter(models))) for kernel in campaign.kernels],
    }


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


def show_result(console: Console, data: Mapping) -> None:
    """Print `result_data` with ``strategy``, ``seconds`` and ``plot``."""
    many = len(data["models"]) > 1
    console.print(_result_table(data, many))
    if many:
        rows = [(each["model"], f"{each['gain']:.2f}x") for each in data["models"]]
        console.print(table("Kernels of each model, in all", ("model", "gain"), rows, numbers=(1,)))
    names = ("tried_now", "failed", "machine_failed", "wrong")
    total = {name: sum(kernel[name] for kernel in data["kernels"]) for name in names}
    threads = f", on {data['threads']} threads" if data["threads"] else ""
    console.print(
        f"Kernels in all: {data['gain']:.2f} times as fast as untuned, by strategy {data['strategy']}"
        f"{threads}; {total['tried_now']} candidates tried in {data['seconds'] / 60:.1f} minutes.\n"
        f"Candidates that failed: {total['failed']}; that the machine failed at: {total['machine_failed']}; with wrong "
        f"outputs: {total['wrong']}.\n"
        f"Records: {data['records']}" + (f", picture: {data['plot']}" if data["plot"] else "")
    )
    if data["stopped"]:
        console.print("The search was interrupted; run the command again to go on.")


def _result_table(data: Mapping, many: bool) -> Table:
    columns = ("kernel", "launches", "share", "trials", "untuned us", "tuned us", "gain", "end")
    # Those with small shares are many; they are worth a row where something came of them.
    shown = [kernel for n, kernel in enumerate(data["kernels"]) if n < _ROWS or kernel["gain"] > 1]
    rest = [kernel for kernel in data["kernels"] if kernel not in shown]
    rows = [
        (
            _short(kernel["names"]),
            *((_model_text(kernel["models"]),) if many else ()),
            kernel["launches"],
            f"{100 * kernel['share']:.1f}%",
            kernel["trials"],
            f"{kernel['untuned_us']:.1f}",
            f"{kernel['untuned_us'] / kernel['gain']:.1f}",
            f"{kernel['gain']:.2f}x",
            kernel["state"],
        )
        for kernel in shown
    ]
    if rest:
        share = sum(kernel["share"] for kernel in rest)
        rows.append((f"and {len(rest)} more", *[""] * (1 + many), f"{100 * share:.1f}%", *[""] * 5))
    title = f"{len(data['models'])} models" if many else data["models"][0]["model"]
    columns = (columns[0], "models", *columns[1:]) if many else columns
    return table(title, columns, rows, numbers=range(1 + many, 7 + many))


def _short(names: Sequence[str]) -> str:
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")
