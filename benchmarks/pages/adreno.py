# SPDX-License-Identifier: Apache-2.0
"""The part of docs/adreno.md on whole networks, of what adreno_networks.py found."""

from __future__ import annotations

from adreno_networks import GPUS, NETWORKS, OTHERS, PRECISIONS, RESULTS, read, summary
from rendering import dates, figure, table

_TEXT = """
Kernels chosen for each Adreno and compiled for it by Mesa {mesa}; {dates}. *Issue / bound* is of kernels that are bound
by arithmetic: geometric mean, worst, and how many are above twice the bound. *Arithmetic* is its mean share in the
inner loops of products. *Modelled ms* adds up, over all launches, the longer of issue time and memory time by the model
of accesses ([memory_accesses.md](memory_accesses.md)); where a loop's trips are not known ("unknown"), the bound stands
for the issue time. *Lines* are those that caches are asked for.
"""
_TITLES = (
    *("network", "Adreno", "kernels", "scratch accesses", "issue / bound, mean", "worst", "above 2", "unknown"),
    *("arithmetic", "modelled ms", "M lines", "MB"),
)


def page() -> str:
    """The whole part; a sentence where nothing was measured yet."""
    rows = read(RESULTS)
    if not rows:
        return "\nNothing was measured yet.\n"
    mesa = ", ".join(sorted({row["mesa"] for row in rows.values()}))
    order = [f"{n}, {p}, {gpu}" for n in (*NETWORKS, *OTHERS) for p in PRECISIONS for gpu in GPUS]
    lines = [line(rows[name]) for name in order if name in rows]
    return "\n".join((_TEXT.format(mesa=mesa, dates=dates(rows.values())), table(_TITLES, lines))) + "\n"


def line(row: dict) -> tuple:
    """A line of the table."""
    found = summary(row)
    half = ", half" if row["precision"] == "half" else ""
    kernels = f"{found['kernels']}" + (f" and {found['refused']} refused" if found["refused"] else "")
    share = "-" if found["share"] is None else f"{found['share']:.0%}"
    over = figure(found["mean"], "{:.2f}"), figure(found["worst"], "{:.2f}"), found["above"], found["unknown"]
    name = f"{row['network'].rpartition('/')[2]}{half}"
    moved = f"{found['seconds'] * 1e3:.3f}", f"{found['lines'] / 1e6:.2f}", f"{found['bytes'] / 1e6:.1f}"
    return name, row["gpu"], kernels, found["scratch"], *over, share, *moved
