# SPDX-License-Identifier: Apache-2.0
"""Plot the memory of an inference: addresses over time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from ..bench.plot import COLORS, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {"activation": COLORS[0], "workspace": COLORS[1], "result": COLORS[2], "weight": COLORS[3]}
"""Kind of tensor in `deploy.memory_plan` -> its color."""
_MB = 1e6


def draw_plan(plan: Mapping, title: str, path: Path) -> None:
    """Draw each tensor as a block from its first step to its last and over its addresses.

    Storages are stacked. The black line is the sum of the tensors in use at a step: where it reaches the top of an
    arena, no plan needs less memory.

    Parameters
    ----------
    plan : mapping
        The result of `page.tensors.memory`.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    save(figure(plan, title), path)


def figure(plan: Mapping, title: str) -> Figure:
    """Return the figure that `draw_plan` writes."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    matplotlib.rcParams["svg.hashsalt"] = "smartmem plan"  # makes the file reproducible
    found = Figure(figsize=(11.0, 5.5), layout="constrained")
    axes = found.subplots()
    bases = [0, *accumulate(each["bytes"] for each in plan["storages"])]
    for tensor in plan["tensors"]:
        _block(axes, tensor, bases)
    for base in bases:
        axes.axhline(base / _MB, color="black", linewidth=0.6, linestyle=":")
    axes.stairs([each / _MB for each in plan["live"]], color="black", linewidth=1.4, label="in use")
    axes.set(title=title, xlabel="launches, in the order of execution", ylabel="MB", xlim=(0, len(plan["steps"])))
    axes.set_ylim(0, 1.02 * bases[-1] / _MB or 1)
    kinds = dict.fromkeys(each["kind"] for each in plan["tensors"])
    axes.legend(
        handles=[*(Patch(color=KINDS[kind], label=kind) for kind in kinds), *axes.get_legend_handles_labels()[0]],
        loc="upper right",
    )
    return found


def _block(axes: Axes, tensor: Mapping, bases: list[int]) -> None:
    from matplotlib.patches import Rectangle

    if tensor["storage"] is None:
        return
    corner = tensor["first"], (bases[tensor["storage"]] + tensor["offset"]) / _MB
    size = tensor["last"] + 1 - tensor["first"], tensor["bytes"] / _MB
    axes.add_patch(Rectangle(corner, *size, facecolor=KINDS[tensor["kind"]], edgecolor="white", linewidth=0.4))
