# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/tuning.md that compare strategies on single kernels, of what tuning.py measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from rendering import HERE, content, dates, table, threads
from tuning import CPU, STRATEGIES, Kernel

from smartmem_tvm.tools.bench.columns import geometric_mean

FILES = ("tuning.json", "tuning_h100.json")
WHAT = {(kernel.model, kernel.name): kernel for kernel in CPU}


def page(found: dict) -> str:
    """The table of one file, what it comes to, and where it was measured."""
    lines = [_line(*pair) for pair in _kernels(found)]
    titles = ("kernel", "untuned, us", *(f"{name}, us" for name in STRATEGIES), "genetic / evolutionary", "gain")
    return "\n\n".join([table(titles, lines), _means(found), _where(found)])


def _kernels(found: dict) -> list[tuple[Kernel, list[dict]]]:
    order = list(WHAT)
    rows = sorted(found["rows"], key=lambda row: order.index((row["model"], row["name"])))
    return [(WHAT[key], list(mine)) for key, mine in groupby(rows, key=lambda row: (row["model"], row["name"]))]


def _line(kernel: Kernel, rows: Sequence[dict]) -> list[str]:
    untuned, *tuned = [median(each) for each in zip(*map(_times, rows))]
    ratio, gain = _ratio(rows), geometric_mean([_gain(row) for row in rows])
    shown = [f"{kernel.kind} {kernel.what} ({kernel.model})", *(f"{each:.1f}" for each in (untuned, *tuned))]
    return [*shown, f"{ratio:.2f}x", f"{gain:.2f}x"]


def _times(row: dict) -> list[float]:
    return [row["untuned_us"], *(row[name]["us"] for name in STRATEGIES)]


def _gain(row: dict) -> float:
    """How much faster a model's kernel gets: it stays as it was where nothing faster was found."""
    return max(1.0, row["untuned_us"] / row["genetic"]["us"])


def _ratio(rows: Sequence[dict]) -> float:
    """The genetic search's kernel over the other one's, of each seed."""
    return geometric_mean([row["genetic"]["us"] / row["evolutionary"]["us"] for row in rows])


def _means(found: dict) -> str:
    rows = found["rows"]
    seconds = [sum(row[name]["seconds"] for row in rows) / len(rows) for name in STRATEGIES]
    sums = {what: [sum(row[name][what] for row in rows) for name in STRATEGIES] for what in ("failed", "wrong")}
    gain = geometric_mean([_gain(row) for row in rows])
    seeds = len({row["seed"] for row in rows})
    over = f"{len(_kernels(found))} kernels and {seeds} seed{'s' * (seeds > 1)}, {found['trials']} trials each"
    return (
        f"Geometric means over {over}: genetic over evolutionary {_ratio(rows):.2f}x, over untuned {1 / gain:.2f}x. "
        f"Seconds for a kernel: {seconds[0]:.0f} and {seconds[1]:.0f}. "
        f"Candidates that failed: {_pair(sums['failed'])}; "
        f"finalists with wrong results: {_pair(sums['wrong'])}."
    )


def _pair(counts: Sequence[int]) -> str:
    return " and ".join(map(str, counts))


def _where(found: dict) -> str:
    machine = found["machine"]
    place = found["device"] or machine["cpu"]
    device = ", ".join([found["target"], *([threads(found["threads"])] if found["threads"] else [])])
    where = f"{place} ({device}); {machine['os']}; apache-tvm {machine['apache-tvm']}; {dates(found['rows'])}"
    return f"Measured on {where}."


def figures() -> str:
    """All files that are there."""
    return "\n\n".join(page(content(name)) for name in FILES if (HERE / name).exists())
