# SPDX-License-Identifier: Apache-2.0
"""Plot a tuning: the best time of each kernel over the candidates tried."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, cycle
from pathlib import Path
from typing import TYPE_CHECKING

from .plot import COLORS, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...tune.campaign import KernelRun

_NAMED = len(COLORS)  # kernels with a colour and a name: those with the largest shares


def best_so_far(times: Sequence[float | None]) -> list[float]:
    """Return the smallest time up to each candidate; infinite before the first success."""
    return list(accumulate((float("inf") if each is None else each for each in times), min))


def draw(kernels: Sequence[KernelRun], path: Path) -> None:
    """Draw the speed-up of each kernel's best candidate over the untuned kernel after each trial.

    A dot at the end is the final result: the winner measured in turns with the untuned kernel.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.subplots()
    for number, (kernel, color) in enumerate(zip(kernels, cycle(COLORS))):
        speedups = [kernel.untuned / each for each in best_so_far(kernel.times)]
        named = {"color": color, "label": f"{kernel.name} ({100 * kernel.share:.0f}%)", "linewidth": 1.6}
        rest = {"color": "#c8c8c8", "linewidth": 0.8, "zorder": 1}
        look = named if number < _NAMED else rest
        axes.step(range(1, 1 + len(speedups)), speedups, where="post", **look)
        if kernel.winner:
            axes.plot([len(speedups)], [kernel.gain], "o", color=look["color"], markersize=4, zorder=3)
    _dress(axes)
    save(figure, path)


def _dress(axes: Axes) -> None:
    axes.set_xlabel("candidates tried; a dot: the winner, measured in turns with the untuned kernel")
    axes.set_ylabel("times as fast as untuned")
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.grid(color="#e8e8e8")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="kernel (share of time)", frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
