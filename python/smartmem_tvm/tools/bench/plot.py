# SPDX-License-Identifier: Apache-2.0
"""Plot the gain of each technique as stacked bars, like SmartMem's Figure 8."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError
from ...whole_file import whole
from .columns import activations, latency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS: tuple[tuple[str, Callable[[Mapping], float | None]], ...] = (
    ("Kernels", lambda facts: facts.get("kernels")),
    ("Bytes of activations moved", activations),
    ("Latency", latency),
)
_BASE = "#c8c8c8"
# Distinguishable in print and for colour-blind readers: Okabe and Ito's palette.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#5d3a9b")
_FORMATS = (".png", ".svg", ".pdf")
_WIDTH = 0.62
_VISIBLE = 0.005  # gains (ratio minus 1) below this are not drawn


def require_matplotlib(path: Path, option: str = "--plot") -> None:
    """Check before long work that the picture of an option can be drawn.

    Raises
    ------
    UserError
        If matplotlib is missing, or the name of the file has no known ending.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            f"{option} draws with matplotlib, which is missing; pip install 'smartmem-tvm[plots]' installs it."
        )
    if path.suffix not in _FORMATS:
        raise UserError(f"{option} {path} must end with one of {', '.join(_FORMATS)}.")


def gains(row: Mapping, figure: Callable[[Mapping], float | None]) -> list[tuple[str | None, float]]:
    """Return the factor by which a figure has shrunk after each step of the ablation.

    Returns
    -------
    list
        (technique added, factor) of each step that has the figure; the first is ``(None, 1.0)``. Empty if the first
        has none.
    """
    values = [(step["added"], figure(row["systems"].get(step["system"], {}))) for step in row["ablation"]]
    if not values[0][1]:
        return []
    return [(added, values[0][1] / value) for added, value in values if value]


def draw(rows: Sequence[Mapping], path: Path) -> None:
    """Draw the ablation of each row.

    Kernels, bytes and latency have one panel each, with one bar for each model: 1 for the baseline without any of the
    techniques, and on top the gain of each technique after the previous ones. A loss is drawn below zero, and the
    number above the bar is the total factor.

    Raises
    ------
    UserError
        If no row has an ablation, or the file cannot be written.
    """
    rows = [row for row in rows if "ablation" in row]
    if not rows:
        raise UserError(f"{path} was not drawn: no model has an ablation that went well.")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.5, 2.0 + 0.9 * len(rows)), 8.0), layout="constrained")
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    names = dict.fromkeys(step["added"] for row in rows for step in row["ablation"] if step["added"])
    colors = {None: _BASE, **dict(zip(names, cycle(COLORS)))}
    for axes, (title, figure_of) in zip(panels, _PANELS):
        for x, row in enumerate(rows):
            _bar(axes, x, gains(row, figure_of), colors)
        _dress(axes, title)
    panels[-1].set_xticks(range(len(rows)), [row["name"] for row in rows], rotation=0 if len(rows) < 6 else 20)
    panels[-1].set_xlim(-0.6, len(rows) - 0.4)
    _legend(figure, colors)
    save(figure, path)


def _bar(axes: Axes, x: int, factors: Sequence[tuple[str | None, float]], colors: Mapping) -> None:
    top, bottom, before = 0.0, 0.0, 0.0
    for added, factor in factors:
        gain, before = factor - before, factor
        if gain >= _VISIBLE:
            axes.bar(x, gain, _WIDTH, top, color=colors[added], edgecolor="white", linewidth=0.6)
            top += gain
        elif gain <= -_VISIBLE:
            axes.bar(x, gain, _WIDTH, bottom, color="white", edgecolor=colors[added], hatch="////", linewidth=0.6)
            bottom += gain
    if factors:
        axes.annotate(
            f"{before:.2f}x", (x, top), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=9
        )


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_ylabel("times less")
    axes.margins(y=0.12)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.grid(axis="y", color="#e8e8e8")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, colors: Mapping) -> None:
    from matplotlib.patches import Patch

    labels = {None: "baseline: none of these"}
    entries = [Patch(color=color, label=labels.get(name, f"+ {name}")) for name, color in colors.items()]
    entries.append(Patch(facecolor="white", edgecolor="black", hatch="////", label="below zero: a cost"))
    figure.legend(handles=entries, loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the file is complete or absent.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    with whole(path) as partial:
        figure.savefig(partial, dpi=150)
