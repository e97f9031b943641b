# SPDX-License-Identifier: Apache-2.0
"""Plot an inference within a memory budget: the times of reading and of computing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..bench.plot import COLORS, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_READ, _COMPUTED, _WAITED = COLORS[3], COLORS[0], COLORS[5]
Span = tuple[float, float]


def draw_timeline(timeline: Mapping, title: str, path: Path) -> None:
    """Draw one row for the thread that reads, and one for the thread that computes and waits.

    Parameters
    ----------
    timeline : mapping
        The result of `deploy.streamed.StreamedMachine.timeline`.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    save(figure(timeline, title), path)


def spans(timeline: Mapping) -> tuple[list[Span], list[Span], list[Span]]:
    """Return beginning and end, in seconds, of each span of reading, computing and waiting."""
    read = [tuple(each["read"]) for each in timeline["loads"] if not math.isnan(each["read"][1])]
    waited = [tuple(each["wait"]) for each in timeline["loads"] if each["wait"][1] > each["wait"][0]]
    computed, begin = [], 0.0
    for end in timeline["done"]:
        inside = sorted(each for each in waited if begin <= each[0] < end)
        computed.append((max([begin, *(stop for _, stop in inside)]), end))
        begin = end
    return read, computed, waited


def figure(timeline: Mapping, title: str) -> Figure:
    """Return the figure that `draw_timeline` writes."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "smartmem timeline"  # makes the file reproducible
    found = Figure(figsize=(11.0, 2.6), layout="constrained")
    axes = found.subplots()
    read, computed, waited = spans(timeline)
    rows = ((1, read, _READ, "reading weights"), (0, computed, _COMPUTED, "computing"), (0, waited, _WAITED, "waiting"))
    for row, times, color, label in rows:
        axes.broken_barh(
            _bars(times), (row - 0.4, 0.8), facecolors=color, edgecolor="white", linewidth=0.2, label=label
        )
    axes.set_yticks((0, 1), ("computing threads", "reading thread"))
    axes.set(title=title, xlabel="milliseconds since the beginning of the inference", ylim=(-0.6, 1.6))
    axes.legend(loc="upper right", ncols=3)
    return found


def _bars(times: Sequence[Span]) -> list[Span]:
    return [(1e3 * begin, 1e3 * (end - begin)) for begin, end in times]
