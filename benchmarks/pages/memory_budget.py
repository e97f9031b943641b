# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/memory_budget.md, of what memory_budget.py found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rendering import content, table

RESULTS = "memory_budget.json"
LATENCIES = (
    *("network", "memory", "MB", "ms", "latency", "weights kept", "kernels", "measured over the arena, MB"),
    "largest difference",
)
COSTS = ("network", "weights on disk, MB", "all in memory, MB", "least budget, MB", "slicing, s", "planning again, s")


def latencies() -> str:
    """Latency of each budget over all in memory, in turns, and what it took of memory."""
    rows: Sequence[Mapping] = content(RESULTS)
    first = rows[0]
    lines = (line for row in rows for line in _lines(row))
    return f"{table(LATENCIES, lines)}\n\n{first['cpu']}, threads: {first['threads']}, {first['date']}."


def costs() -> str:
    """What preparing takes, once and for another budget (FlexNN, Table 2)."""
    return table(COSTS, map(_cost, content(RESULTS)))


def _lines(row: Mapping) -> Iterator[tuple]:
    for each in row["rows"]:
        if each["way"] == "in memory":
            yield (row["name"], "all, no budget", f"{each['bytes'] / 1e6:.1f}", f"{each['ms']:.4g}", *[""] * 5)
            continue
        taken = each.get("resident")
        over = f"{(taken['peak'] - taken['arena']) / 1e6:.1f}" if taken else ""
        kept = f"{each['pinned']}" if "pinned" in each else "none"
        error = f"{each['error']:.1g}" if "error" in each else ""
        name = "a layer at a time" if each["way"] == "on demand" else each["way"]
        ratio = f"**{each['ratio']:.3f}x**" if taken else f"{each['ratio']:.3f}x"
        facts = (f"{each['bytes'] / 1e6:.1f}", f"{each['ms']:.4g}", ratio)
        yield ("", name, *facts, kept, each.get("kernels", ""), over, error)


def _cost(row: Mapping) -> tuple:
    taken = [each["seconds"] for each in row["rows"] if "seconds" in each]
    slicing, planning = (max(each[name] for each in taken) for name in ("slicing", "planning"))
    sizes = (f"{row[name] / 1e6:.1f}" for name in ("storage", "total", "least"))
    return (row["name"], *sizes, f"{slicing:.1f}", f"{planning:.2f}")
