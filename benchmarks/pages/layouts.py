# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/layouts.md, of what layouts.py, layout_speed.py and buffer_share.py found."""

from __future__ import annotations

from collections.abc import Sequence

from rendering import content, table

RESULTS, SPEED, SHARE = "layouts.json", "layout_speed.json", "buffer_share.json"
TITLES = ("network", "TVM", "of which copies", "ours, before", "buffers", "**as planned**", "all in textures")
PLANS = {"buffers": "buffers", "placed": "as planned", "textures": "all in textures"}
"""Key of the file -> heading."""


def transitions(rows: Sequence[dict]) -> str:
    """Counts of each graph, and why the rest is left."""
    lines = []
    for row in rows:
        planned, most = ("{} of {}".format(*row["in_textures"][plan]) for plan in ("placed", "textures"))
        counts = (row[key] for key in ("tvm", "tvm_copies", "before", "buffers"))
        lines.append((row["name"], *counts, f"**{row['placed']}** ({planned})", f"{row['textures']} ({most})"))
    return "\n\n".join([table(TITLES, lines), left(rows)])


def left(rows: Sequence[dict]) -> str:
    """Every reason for which tensors are left, and how many of which networks."""
    found: dict = {}
    for row in rows:
        for plan, title in PLANS.items():
            for each in row["left"][plan]:
                found.setdefault((title, each["memory"], each["reason"]), []).append(f"{row['name']} {each['tensors']}")
    lines = [(title, memory, reason, ", ".join(tensors)) for (title, memory, reason), tensors in found.items()]
    return table(("column", "memory", "why it is left", "tensors"), lines)


def copies(rows: Sequence[dict]) -> str:
    """What copies would save and cost, in lines of the device's caches."""
    lines = []
    for row in rows:
        facts = row["copies"]
        if not facts["tensors"]:
            continue
        cells = [f"{facts[key] / 1e6:.2f} / {facts[f'{key}_with_copies'] / 1e6:.2f}" for key in ("lines", "misses")]
        lines.append((row["name"], facts["tensors"], *cells, f"{facts['written'] / 1e6:.2f}"))
    return table(("million lines", "tensors", "asked for: now / with copies", "from memory", "to write copies"), lines)


def speed(rows: Sequence[dict]) -> str:
    """What another order in buffers does to the latency of networks."""
    lines = []
    for row in rows:
        off, on = row["ms"]
        counts = "{} to {}".format(*row["transitions"])
        target, where = f"`{row['target']}`", f"{row['device']}, {row['date']}"
        lines.append(
            (row["name"], target, counts, row["reordered"], f"{off:.3f} / {on:.3f}", f"{on / off:.2f}x", where)
        )
    titles = ("network", "target", "transitions", "tensors moved", "ms: off / on", "on / off", "measured on")
    return table(titles, lines)


def shares(rows: Sequence[dict]) -> str:
    """How many tensors go to textures, and what that is worth, by the estimate."""
    lines = []
    for row in rows:
        for each in row["choices"]:
            placed = ("{} of {}".format(*each[kind]) for kind in ("tensors", "weights"))
            times = [each["ms"][name] for name in ("buffers", "all", "chosen")]
            gain = f"{times[0] / times[-1]:.2f}x"
            lines.append((row["name"], f"{each['share']:.1f}", *placed, *(f"{time:.2f}" for time in times), gain))
    titles = (
        "network",
        "share",
        "tensors in textures",
        "weights",
        "ms in buffers",
        "all in textures",
        "**as planned**",
    )
    return table((*titles, "buffers / as planned"), lines)


SECTIONS = {
    "layouts": lambda: transitions(content(RESULTS)["networks"]),
    "speed": lambda: speed(content(SPEED)["rows"]),
    "copies": lambda: copies(content(RESULTS)["networks"]),
    "share": lambda: shares(content(SHARE)["networks"]),
}
"""Name of the comments around a table -> what makes it."""
