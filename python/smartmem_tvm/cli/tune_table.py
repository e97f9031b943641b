# SPDX-License-Identifier: Apache-2.0
"""Output of `smartmem tune`: a live table, lines without a terminal, and the result."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..tune.progress import duration, gain_so_far, headline, time_left_of, tuned_models
from .console import table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..tune.campaign import Campaign, KernelRun

_ROWS = 20
_MINUTE = 60.0


@contextlib.contextmanager
def show_progress(campaign: Campaign) -> Iterator[Callable[[Campaign], None]]:
    """Yield the function that a campaign calls to show its progress.

    It shows a live table if stderr is a terminal; otherwise a line for each finished kernel, and one a minute.
    """
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    # stdout is already redirected to stderr while a command runs, and must not be redirected again.
    options = {"console": Console(stderr=True), "transient": True, "redirect_stdout": False, "refresh_per_second": 2}
    with Live(get_renderable=lambda: live_table(campaign), **options) as live:
        yield lambda _: live.refresh()


class _Lines:
    """Print lines about the progress of a campaign."""

    def __init__(self):
        self._done, self._last = 0, time.monotonic()

    def __call__(self, campaign: Campaign) -> None:
        done = sum(bool(kernel.state and kernel.tried) for kernel in campaign.kernels)
        if done > self._done or time.monotonic() >= self._last + _MINUTE:
            self._done, self._last = done, time.monotonic()
            print(f"smartmem: {headline(campaign)}", file=sys.stderr, flush=True)


def live_table(campaign: Campaign) -> Table:
    """Return a table of a campaign: the kernels with the largest shares, and the one being tuned."""
    many = len(tuned_models(campaign)) > 1
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
    best, left = kernel.best, time_left_of(campaign, kernel)
    return (
        kernel.name,
        f"{100 * kernel.share:.1f}%",
        f"{len(kernel.times)}/{campaign.effort.trials}",
        f"{kernel.untuned * 1e6:.1f}",
        f"{best * 1e6:.1f}" if best is not None else "-",
        f"{gain_so_far(kernel):.2f}x",
        duration(left) if left is not None and not kernel.state else "-",
        "now" if kernel is campaign.current and not kernel.state else kernel.state,
    )


def _model_text(shares: Mapping[str, float]) -> str:
    return ", ".join(shares) if len(shares) < 3 else f"{len(shares)} models"


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
    judged = f" by {data['judge']} and the model of accesses, as nothing was measured" if data["judge"] else ""
    console.print(
        f"Kernels in all: {data['gain']:.2f} times as fast as untuned{judged}, by strategy {data['strategy']}"
        f"{threads}; {total['tried_now']} candidates tried in {data['seconds'] / 60:.1f} minutes.\n"
        f"Candidates that failed: {total['failed']}; that the machine failed at: {total['machine_failed']}; with wrong "
        f"outputs: {total['wrong']}.\n"
        f"Records: {data['records']}" + (f", picture: {data['plot']}" if data["plot"] else "")
    )
    for line in order_lines(data["kernels"]):
        console.print(line)
    if data["stopped"]:
        console.print("The search was interrupted; run the command again to go on.")


def order_lines(kernels: Sequence[Mapping]) -> Iterator[str]:
    """Yield what became of the order of modelled candidates when they were measured; nothing if there were none."""
    changed = [(kernel, kernel["order"]) for kernel in kernels if kernel["order"]]
    if not changed:
        return
    first = sum(order["best_is"] == 1 for _, order in changed)
    known = [order["correlation"] for _, order in changed if order["correlation"] is not None]
    mean = f"; their rank correlation is {sum(known) / len(known):.2f} in the mean" if known else ""
    were = "kernel was" if len(changed) == 1 else "kernels were"
    yield (
        f"Modelled candidates of {len(changed)} {were} measured: the modelled best is the measured best of "
        f"{first}{mean}."
    )
    for kernel, order in changed:
        if order["best_is"] > 1:
            of = f"number {order['best_is']} of {order['compared']} measured"
            yield f"{kernel['names'][0]}: the modelled best is {of}."


def _result_table(data: Mapping, many: bool) -> Table:
    columns = ("kernel", "launches", "share", "trials", "untuned us", "tuned us", "gain", "end")
    # Kernels with small shares are many; only improved ones get a row.
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
