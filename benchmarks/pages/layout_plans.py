# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/layout_plans.md, of what layout_plans.py found on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rendering import content, table

RESULTS, ON_CUDA = "layout_plans.json", "layout_plans_cuda.json"
LATENCIES = (
    *("network", "ms, as tensors are", "reduction dimension", "**fluid**", "exact", "TVM's graph"),
    *("fluid over exact, by costs", "tensors moved", "s to measure / to plan again"),
)


def figures(results: str = RESULTS) -> str:
    """Latencies of all planners in turns, over that of tensors as they are; and what the plans are of."""
    rows: Sequence[Mapping] = content(results)
    first = rows[0]
    dates = sorted({row["date"] for row in rows})
    where = f"{first['device']}, threads: {first['threads']}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}."
    return f"{table(LATENCIES, map(_line, rows))}\n\n{where}"


def figures_on_cuda() -> str:
    """The same on a GPU."""
    return figures(ON_CUDA)


def _line(row: Mapping) -> tuple:
    ratio, cost = row["ratio"], row["cost_ms"]
    times = [f"{ratio[way]:.2f}x" if way in ratio else "" for way in ("reduction-dimension", "fluid", "exact", "tvm")]
    times[1] = f"**{times[1]}**"
    lost = f"{cost['fluid'] / cost['exact']:.3f}x" if "exact" in cost else ""
    moved = f"{row['moved'].get('fluid', 0)} of {row['tensors']}"
    seconds = row["seconds"]
    taken = f"{seconds['measuring']:.0f} / {max(seconds['planning'], 0):.1f}"
    return (row["name"], f"{row['ms']['False']:.4g}", *times, lost, moved, taken)
