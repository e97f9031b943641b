# SPDX-License-Identifier: Apache-2.0
"""What a command prints: its result on stdout, as tables or as JSON; everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH = 120  # columns where there is no terminal to ask


@dataclass(frozen=True)
class Result:
    """What a command found.

    Attributes
    ----------
    data : dict
        What ``--json`` prints.
    render : callable
        Prints the same for people.
    exit_code : int
        Of the process.
    follow : callable or None
        What goes on after that is printed, as a server does.
    """

    data: dict[str, Any]
    render: Callable[[Console], None]
    exit_code: int = 0
    follow: Callable[[], None] | None = None


def emit(result: Result, as_json: bool) -> None:
    """Print a result on stdout, and make sure it got there."""
    if as_json:
        print(json.dumps(plain(result.data), indent=2, allow_nan=False))
    else:
        result.render(_console())
    sys.stdout.flush()


def _console() -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # to `main`; rich would end the process here

        def print(self, *objects, **options) -> None:
            # A sentence is not broken, so that a command in it can be copied; tables fit the width.
            sentence = all(isinstance(each, str) for each in objects)
            super().print(*objects, soft_wrap=sentence, **options)

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH

    # Operator names contain square brackets, which are markup to rich.
    return PipeConsole(width=width, markup=False, highlight=False, emoji=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[int] = ()) -> Table:
    """A table in which nothing is cut off; the columns in `numbers` are aligned to the right."""
    from rich import box
    from rich.table import Table

    result = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, header_style="bold")
    right = set(numbers)
    for index, column in enumerate(columns):
        result.add_column(column, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        result.add_row(*(str(cell) for cell in row))
    return result


def plain(value: Any) -> Any:
    """Data that JSON can hold: numpy numbers as Python's, NaN and infinities (which JSON lacks) as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def peak_text(data: Mapping[str, Any]) -> str:
    """The peak of memory in `data`, for a sentence."""
    return f"peak memory {data['peak_mb'] / 1e3:.1f} GB"


@contextlib.contextmanager
def step(label: str) -> Iterator[None]:
    """Show what is being done and for how long, on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # stdout leads to stderr already while a command works, and must not be caught a second time.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        progress.add_task(label)
        yield
