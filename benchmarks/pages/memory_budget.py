# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/memory_budget.md, of what memory_budget.py found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rendering import HERE, chart, content, save, table

RESULTS, CHART = "memory_budget.json", HERE / "memory_budget.svg"
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
    picture = "![Latency over the memory budget](../benchmarks/memory_budget.svg)"
    return f"{picture}\n\n{table(LATENCIES, lines)}\n\n{first['cpu']}, threads: {first['threads']}, {first['date']}."


def costs() -> str:
    """What preparing takes, once and for another budget (FlexNN, Table 2)."""
    return table(COSTS, map(_cost, content(RESULTS)))


def draw_chart() -> None:
    """Latency over the budget, a line for each network from the least budget to all in memory."""
    picture = chart((7.0, 4.0), "memory budget")
    axes = picture.subplots()
    for row in content(RESULTS):
        within = [each for each in row["rows"] if "resident" in each]
        sizes, ratios = [each["bytes"] / 1e6 for each in within], [each["ratio"] for each in within]
        (line,) = axes.plot(sizes, ratios, marker="o", markersize=4, label=row["name"])
        demand = next(each for each in row["rows"] if each["way"] == "on demand")
        axes.plot(demand["bytes"] / 1e6, demand["ratio"], "x", color=line.get_color())
    axes.plot([], [], "x", color="0.4", label="a layer at a time")
    axes.axhline(1.0, color="0.7", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("memory budget, MB")
    axes.set_ylabel("latency over all in memory")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    save(picture, CHART)


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
