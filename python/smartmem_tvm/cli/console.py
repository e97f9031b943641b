# SPDX-License-Identifier: Apache-2.0
"""Print results of commands on stdout, as tables, sentences or JSON, and everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from ..json_data import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH = 120  # columns without a terminal
_WIDEST = 10_000  # columns of any table


@dataclass(frozen=True)
class Result:
    """The result of a command.

    Attributes
    ----------
    data : dict
        The data that ``--json`` prints.
    render : callable
        Prints the same data as text for people.
    exit_code : int
        The exit code of the process.
    follow : callable or None
        Called after the result is printed, to run a server for example.
    """

    data: dict[str, Any]
    render: Callable[[Console], None]
    exit_code: int = 0
    follow: Callable[[], None] | None = None


def emit(result: Result, as_json: bool) -> None:
    """Print a result on stdout and flush it."""
    if as_json:
        print(json.dumps(plain(result.data), indent=2, allow_nan=False))
    else:
        result.render(_console())
    sys.stdout.flush()


def _console() -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # handled by `main`; rich would end the process here

        def print(self, *objects, **options) -> None:
            # Sentences are not wrapped, so that a command in one can be copied; tables fit the width if possible.
            sentence = all(isinstance(each, str) for each in objects)
            usual = self.width
            self.width = max([usual, *(least_width(self, each) for each in objects)])
            super().print(*objects, soft_wrap=sentence, **options)
            self.width = usual

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH

    # Operator names contain square brackets, which rich reads as markup.
    return PipeConsole(width=width, markup=False, highlight=False, emoji=False)


def least_width(console: Console, shown: Any) -> int:
    """Return the least width of a table in characters, as some of its columns must not be wrapped."""
    from rich.table import Table

    if not isinstance(shown, Table) or not any(column.width for column in shown.columns):
        return 0
    return console.measure(shown, options=console.options.update(width=_WIDEST, max_width=_WIDEST)).minimum


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    numbers: Iterable[int] = (),
    whole: Iterable[int] = (),
) -> Table:
    """Return a table without truncated cells.

    Parameters
    ----------
    numbers
        Columns aligned to the right.
    whole
        Columns as wide as their longest word, even if the table becomes wider than the terminal.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table

    result = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, header_style="bold")
    right, whole, rows = set(numbers), set(whole), [[str(cell) for cell in row] for row in rows]
    for index, column in enumerate(columns):
        cells = [*column.split(), *(row[index] for row in rows)]
        least = max(map(cell_len, cells), default=None) if index in whole else None
        result.add_column(column, justify="right" if index in right else "left", overflow="fold", width=least)
    for row in rows:
        result.add_row(*row)
    return result


def megabytes(count: int | None) -> str:
    """Return bytes as text in megabytes; None counts as 0."""
    return f"{(count or 0) / 1e6:.3g} MB"


def peak_text(data: Mapping[str, Any]) -> str:
    """Return the peak of memory in `data` as a phrase."""
    return f"peak memory {data['peak_mb'] / 1e3:.1f} GB"


def tuning_text(report: Mapping | None) -> str:
    """Return a report of `deploy.tuned.tuning_report` in sentences, one a line; a folder may have none (None)."""
    return "\n".join(_sentences(report)) if report is not None else "Whether kernels are tuned is not on record."


def _sentences(report: Mapping) -> Iterator[str]:
    if report["tuned"]:
        yield f"{report['tuned']} of {report['kernels']} kernels are tuned: {_gains(report['gains'].values())}"
    else:
        yield f"None of {report['kernels']} kernels is tuned; `smartmem tune` would search better schedules for them."
    for run in report["runs"]:
        found = [run["date"] or "no date", run["device"] or "no device"]
        found += [f"driver {run['driver']}"] if run["driver"] else []
        found += [f"on {run['threads']} threads"] if run["threads"] else []
        found += [f"modelled and not measured, by {run['judge']}"] if run.get("judge") else []
        yield f"Tuned by strategy {run['strategy']}: {run['tuned']} ({', '.join(found)}; {run['records']})."
    for each in report["left_out"]:
        yield f"Records that do not count: of {each['kernels']}, {each['reason']}."


def _gains(gains: Collection[Mapping]) -> str:
    """Return the mean gains of kernels that were tuned by measurements, and of those that were tuned by a model."""
    kinds = {
        "what was measured when they were tuned": [each["gain"] for each in gains if not each.get("judge")],
        "modelled times, as nothing was measured": [each["gain"] for each in gains if each.get("judge")],
    }
    parts = [(what, found) for what, found in kinds.items() if found]
    several = len(parts) > 1
    told = [
        (f"{len(found)} of them " if several else "")
        + f"{geometric_mean(found):.2f} times as fast as untuned, by the geometric mean of {what}"
        for what, found in parts
    ]
    return f"{', and '.join(told)}."


def decisions_text(decisions: Mapping | None) -> str:
    """Return the decisions of a tuned kernel as text, grouped by kind; None means a schedule of TVM's."""
    if decisions is None:
        return "a schedule of TVM's"
    kinds: dict[str, list[str]] = {}
    for name, value in decisions.items():
        kind, _, field = name.partition(".")
        kinds.setdefault(kind, []).append(f"{field} {value}")
    return "; ".join(f"{kind}: {', '.join(fields)}" for kind, fields in kinds.items())


@contextlib.contextmanager
def step(label: str) -> Iterator[None]:
    """Show the current step and its duration on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # stdout is already redirected to stderr while a command runs, and must not be redirected again.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        progress.add_task(label)
        yield
