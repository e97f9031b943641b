# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/memory_accesses.md and the chart that it shows, of the results of accesses.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rendering import HERE, chart, content, save, table

from smartmem_tvm.cli.accesses import ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS, CHART = "accesses.json", HERE / "memory_accesses.svg"
# As told apart by colour-blind readers too (Okabe and Ito).
COLORS = {"tvm_textures": "#999999", "elimination": "#56b4e9", "layout": "#e69f00", "smartmem": "#0072b2"}
ASKED, MISSED = "lines that caches are asked for, M", "lines from memory, M"
MILLIONS = ", M"


def page(networks: Mapping[str, Mapping]) -> str:
    """One table for accesses and one for misses, what they compare to, and each network's own table."""
    parts = ["![Accesses and misses beside TVM's](../benchmarks/memory_accesses.svg)"]
    for title, label in (("Accesses", ASKED), ("Misses", MISSED)):
        parts += [f"### {title}: millions of {label.removesuffix(MILLIONS)}", _summary(networks, ROWS[label])]
    parts += [f"### {name}\n\n{_all(row['sides'])}" for name, row in networks.items()]
    return "\n\n".join([*parts, _where(networks)])


def _summary(networks: Mapping[str, Mapping], figure: Callable) -> str:
    titles, rows = None, []
    for name, row in networks.items():
        sides = row["sides"]
        titles = ("network", *(side["label"] for side in sides.values()), "**TVM default / ours**")
        values = [figure(side) / 1e6 for side in sides.values()]
        rows.append((name, *(f"{each:.2f}" for each in values), f"**{values[0] / values[-1]:.2f}x**"))
    return table(titles, rows)


def _all(sides: Mapping[str, Mapping]) -> str:
    lines = [("kernels launched", *(side["launches"] for side in sides.values()))]
    lines += [(label, *(f"{value(side) / 1e6:.2f}" for side in sides.values())) for label, value in ROWS.items()]
    return table(("", *(side["label"] for side in sides.values())), lines)


def _where(networks: Mapping[str, Mapping]) -> str:
    row = next(iter(networks.values()))
    device = row["device"]
    sizes = ", ".join(
        f"{label} {device[key] // 1024} KiB" if device[key] else f"no {label}"
        for label, key in (
            ("first level for buffers", "buffer_l1_bytes"),
            ("first level for textures", "texture_l1_bytes"),
            ("second level", "l2_bytes"),
        )
    )
    lost = {name: sum(side["not_modelled"] for side in row["sides"].values()) for name, row in networks.items()}
    missing = [f"{n} launches of {name}" for name, n in lost.items() if n]
    return (
        f"Model of {device['name']}: lines of {device['sector_bytes']} bytes, {device['cores']} cores, {sizes}; "
        f"estimated are {', '.join(device['estimates'])}. Not counted: {', '.join(missing) or 'nothing'}. "
        f"{max(row['date'] for row in networks.values())}."
    )


def fewer(sides: Mapping[str, Mapping], figure: Callable) -> dict[str, float]:
    """How many times less than TVM's default each of the others has."""
    return {name: figure(sides["tvm_default"]) / figure(side) for name, side in sides.items() if name != "tvm_default"}


def draw(networks: Mapping[str, Mapping], path: Path) -> None:
    """Accesses and misses, as SmartMem's Figures 7 and 9: bars above 1 have fewer than TVM's default, below it more."""
    figure = chart((9.0, 6.0), "memory accesses")
    panels = figure.subplots(2, 1, sharex=True)
    _panel(panels[0], "Lines that caches are asked for", networks, ROWS[ASKED])
    _panel(panels[1], "Lines from memory", networks, ROWS[MISSED])
    panels[1].set_xticks(range(len(networks)), list(networks))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(COLORS), frameon=False, fontsize=9)
    save(figure, path)


def draw_chart() -> None:
    """Draw the committed figures."""
    draw(content(RESULTS)["networks"], CHART)


def _panel(axes: Axes, title: str, networks: Mapping[str, Mapping], value: Callable) -> None:
    for x, row in enumerate(networks.values()):
        for i, (name, factor) in enumerate(fewer(row["sides"], value).items()):
            at, label = x + 0.2 * (i - 1.5), row["sides"][name]["label"] if x == 0 else None
            axes.bar(at, factor - 1, 0.2, 1, color=COLORS[name], label=label)
            above = (0, 2 if factor >= 1 else -9)
            axes.annotate(f"{factor:.2g}", (at, factor), above, textcoords="offset points", ha="center", fontsize=7)
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_ylabel("times fewer than\nTVM's default")
    axes.spines[["top", "right"]].set_visible(False)
