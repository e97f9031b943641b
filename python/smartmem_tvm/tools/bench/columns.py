# SPDX-License-Identifier: Apache-2.0
"""Columns of results: of a table for people, and of a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """One figure of a system.

    Attributes
    ----------
    title, name : str
        Headings in the table and in the CSV file, with the unit.
    path : tuple of str
        Keys of the figure in the facts of a system.
    form : str or callable
        Format in the table.
    scale : float
        Factor for the shown figure.
    """

    title: str
    name: str
    path: tuple[str, ...]
    form: str | Callable[[Any], str] = "{}"
    scale: float = 1.0

    def value(self, facts: Mapping) -> Any:
        """Return the figure, None if it is missing."""
        for key in self.path:
            facts = facts.get(key) if isinstance(facts, Mapping) else None
        return facts * self.scale if isinstance(facts, float | int) and self.scale != 1 else facts

    def text(self, facts: Mapping) -> str:
        """Return the figure as text."""
        value = self.value(facts)
        if value is None:
            return "-"
        return self.form.format(value) if isinstance(self.form, str) else self.form(value)


FIGURES = (
    Column("kernels", "kernels", ("kernels",)),
    Column("layout", "layout_kernels", ("layout_kernels",)),
    Column("MB moved", "activations_mb", ("bytes_moved", "activations"), "{:.1f}", 1e-6),
    Column("ms", "latency_ms_median", ("latency_ms", "median"), "{:.2f}"),
    Column("p10", "latency_ms_p10", ("latency_ms", "p10"), "{:.2f}"),
    Column("p90", "latency_ms_p90", ("latency_ms", "p90"), "{:.2f}"),
    Column("error", "relative_error", ("relative_error",), "{:.1e}"),
    Column("compile MB", "peak_mb_compile", ("peak_mb", "compile"), "{:.0f}"),
    Column("run MB", "peak_mb_run", ("peak_mb", "run"), "{:.0f}"),
    Column("passes s", "seconds_passes", ("seconds", "passes"), "{:.1f}"),
)


def per_graph(kernels: Sequence[int]) -> str:
    """Return the kernels of each CUDA graph and their sum as text."""
    return f"{'+'.join(map(str, kernels))}={sum(kernels)}" if len(kernels) > 1 else str(sum(kernels))


SERVED = (
    Column("kernels", "kernels", ("kernels",)),
    Column("inferences/s", "inferences_per_second", ("throughput", "per_second"), "{:.2f}"),
    *(Column(f"{each} ms", f"request_ms_{each}", ("throughput", each), "{:.2f}") for each in ("p50", "p90", "p99")),
    Column("error", "relative_error", ("relative_error",), "{:.1e}"),
    Column("run MB", "peak_mb_run", ("peak_mb", "run"), "{:.0f}"),
)
"""Columns for requests, several at once."""

# Shown if a system has them.
_GRAPHS = Column("in graphs", "kernels_per_graph", ("kernels_per_graph",), per_graph)
_SLOW = Column("4x off", "slow_share", ("slow_share",), "{:.1%}")
_CSV_ONLY = (
    Column("", "layout_transitions", ("layout_transitions",)),
    Column("", "kernels_in_graphs", ("kernels_in_graphs",)),
    Column("", "runs", ("latency_ms", "runs")),
    Column("", "weights_mb", ("bytes_moved", "weights"), scale=1e-6),
    Column("", "seconds_import", ("seconds", "import")),
    Column("", "seconds_codegen", ("seconds", "codegen")),
    Column("", "error_message", ("error",)),
)
_EXTRA = (_GRAPHS, _SLOW)
ABLATION_TITLES = ("model", "technique", *(column.title for column in FIGURES[:4]), "faster")


def columns_of(rows: Sequence[Mapping]) -> tuple[Column, ...]:
    """Return the columns that these rows have figures for."""
    systems = [facts for row in rows for facts in row.get("systems", {}).values()]
    if any("throughput" in facts for facts in systems):
        return SERVED
    graphs, slow = ((each,) if any(each.value(facts) is not None for facts in systems) else () for each in _EXTRA)
    return (*FIGURES[:2], *graphs, *FIGURES[2:], *slow)


def titles(columns: Sequence[Column] = FIGURES) -> tuple[str, ...]:
    """Return the headings of the table."""
    return ("model", "system", *(column.title for column in columns))


TITLES = titles()


def cells(row: Mapping, columns: Sequence[Column] = FIGURES) -> list[tuple[str, ...]]:
    """Return the table's lines for one model, one for each system; the steps of an ablation have their own table."""
    first, *rest = list(row.get("systems", {})) or [None]
    if first is None:
        return [(row["name"], "failed", *("-" for _ in columns))]
    names = [first, *(name for name in rest if name in others(row))]
    lines = [(name, *(column.text(row["systems"][name]) for column in columns)) for name in names]
    return [(row["name"] if not index else "", *line) for index, line in enumerate(lines)]


def ablation_cells(row: Mapping) -> list[tuple[str, ...]]:
    """Return the lines of an ablation's table: the technique added, the figures, the speed-up over none."""
    lines: list[tuple[str, ...]] = []
    base = row["ablation"][0]["system"]
    for step in row["ablation"]:
        facts = row["systems"].get(step["system"], {})
        factor = ratio(row, latency, base, step["system"])
        label = f"+ {step['added']}" if step["added"] else "none"
        figures = (column.text(facts) for column in FIGURES[:4])
        lines.append((row["name"] if not lines else "", label, *figures, f"{factor:.2f}x" if factor else "-"))
    return lines


def csv_text(rows: Iterable[Mapping]) -> str:
    """Return CSV text with one line for each model and system."""
    text = io.StringIO()
    columns = (*FIGURES, _SLOW, *SERVED[1:5], *_CSV_ONLY)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "system", "threads", "date", *(column.name for column in columns)])
    for row in rows:
        for system, facts in row.get("systems", {"": {"error": row.get("error")}}).items():
            values = (column.value(facts) for column in columns)
            writer.writerow([row["model"], system, row.get("threads"), row["date"], *values])
    return text.getvalue()


def ratio(row: Mapping, figure: Callable[[Mapping], Any], system: str, other: str) -> float | None:
    """Return a figure of one system over that of another, None if one is missing."""
    systems = row.get("systems", {})
    top, bottom = (figure(systems.get(name, {})) for name in (system, other))
    return top / bottom if top is not None and bottom else None


def activations(facts: Mapping) -> int | None:
    """Return the bytes of activations moved."""
    return facts.get("bytes_moved", {}).get("activations")


def latency(facts: Mapping) -> float | None:
    """Return the median latency in milliseconds."""
    return facts.get("latency_ms", {}).get("median")


def per_second(facts: Mapping) -> float | None:
    """Return the inferences per second."""
    return facts.get("throughput", {}).get("per_second")


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def others(row: Mapping) -> list[str]:
    """Return the systems that the first one is compared with, without the steps of an ablation."""
    steps = {step["system"] for step in row.get("ablation", ())}
    return [name for name in list(row.get("systems", {}))[1:] if name not in steps]


def one_line(row: Mapping) -> str:
    """Return a finished row in one line."""
    if "error" in row:
        return row["error"]
    first, facts = next(iter(row["systems"].items()))
    parts = [f"{facts['kernels']} kernels, {facts['layout_kernels']} layout"]
    if latency(facts) is not None:
        parts.append(f"{latency(facts):.1f} ms")
    if per_second(facts) is not None:
        parts.append(f"{per_second(facts):.2f} inferences/s")
    for other in others(row):
        factor = ratio(row, per_second if "streams" in row else latency, first, other)
        if factor is not None:
            parts.append(f"{factor:.2f}x {other}")
    return ", ".join([*parts, f"measured in {row['seconds']:.0f} s"])


def conditions(rows: Sequence[Mapping]) -> list[str]:
    """Return a sentence for each way in which latencies were measured."""
    sentences = {}
    for row in rows:
        if "threads" not in row:
            continue
        turns = "in turns" if row["in_turns"] else "one system after the other"
        devices = row["machine"].get("devices", {})
        where = f"{row['threads']} threads"
        if row.get("target") in devices:
            names = dict.fromkeys(facts["name"] for facts in devices.values())
            where = f"{' and '.join(names)}, inputs and outputs on the device, until it is done"
        batch = f", batch {row['batch']}" if "batch" in row else ""
        if "streams" in row:
            sentences[
                f"Requests: {row['streams']} at a time{batch} on {where}; percentiles of what one takes; in rounds, "
                f"{turns}."
            ] = None
            continue
        if any("slow_share" in facts for facts in row.get("systems", {}).values()):
            sentences[SLOW_SENTENCE] = None
        sentences[f"Latencies: medians, 10th and 90th percentile{batch} on {where}; runs taken {turns}."] = None
    return list(sentences)


SLOW_SENTENCE = "4x off: share of the time in kernels that take more than four times what the device allows."
_MEANS = (("activations moved", activations), ("latency", latency), ("inferences a second", per_second))


def means(rows: Sequence[Mapping]) -> list[str]:
    """Return a sentence for each other system: geometric means of activations, latency and rate relative to it."""
    sentences = []
    for other in dict.fromkeys(name for row in rows for name in others(row)):
        parts = []
        for what, figure in _MEANS:
            ratios = [ratio(row, figure, next(iter(row.get("systems", {""}))), other) for row in rows]
            known = [each for each in ratios if each is not None]
            if known:
                parts.append(f"{what} {geometric_mean(known):.2f}x" + (f" (of {len(known)})" if len(rows) > 1 else ""))
        if parts:
            mean = "geometric mean of " if len(rows) > 1 else ""
            sentences.append(f"Ours against {other}: {mean}{', '.join(parts)}.")
    return sentences
