# SPDX-License-Identifier: Apache-2.0
"""The table of docs/wild.md, of what wild.py found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rendering import HERE, dates, figure, host, mean_of_known, places, table, versions
from wild import files

from smartmem_tvm.tools.bench.results import read

RESULTS = "wild.json"
TITLES = (
    "package",
    "file",
    "MB",
    "opset",
    "nodes",
    "what is odd",
    "result",
    "kernels",
    "layout",
    "compile, s",
    "processor, s",
)
TITLES += ("ms", "/ ONNX Runtime")
LIMIT = 1.2
"""Times ONNX Runtime's: a file above it is one to be mended."""

Row = Mapping


def figures() -> str:
    """What is committed."""
    return page(read(HERE / RESULTS))


def page(found: Mapping[str, Row]) -> str:
    """What was found in all, the table, and what the refusals say."""
    rows = [found[each.key] for each in files() if each.key in found]
    parts = [_counts(rows), *_means(rows), table(TITLES, [_line(row) for row in rows]), *_sentences(rows)]
    return "\n\n".join((*parts, *_conditions(rows)))


def ratio(row: Row) -> float | None:
    """Our time over ONNX Runtime's."""
    timed = row.get("latency", {})
    return timed["smartmem"]["median"] / timed["onnxruntime"]["median"] if timed else None


def _counts(rows: Sequence[Row]) -> str:
    verdicts = Counter(row["verdict"] for row in rows)
    packages = len({row["package"] for row in rows})
    text = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    return f"{len(rows)} files of {packages} packages: {text} ({verdicts['right'] / max(len(rows), 1):.0%} right)."


def _means(rows: Sequence[Row]) -> list[str]:
    timed = {row["name"]: ratio(row) for row in rows if ratio(row) is not None}
    if not timed:
        return []
    above = sorted(((value, name) for name, value in timed.items() if value > LIMIT), reverse=True)
    slow = ", ".join(f"{name} {figure(value)}" for value, name in above) or "none"
    seconds = [sum(row["seconds"].values()) for row in rows if "latency" in row]
    mean = mean_of_known(timed.values(), "{:.2f}x")
    return [
        f"On one thread they take {mean} of ONNX Runtime's time (geometric mean of {len(timed)} files). "
        f"Above {LIMIT}x: {slow}. Compiling takes {sum(seconds) / len(seconds):.1f} s by the clock on average, "
        f"{max(seconds):.0f} s at most{_of_the_processor(rows)}."
    ]


def _of_the_processor(rows: Sequence[Row]) -> str:
    seconds = [row["processor_seconds"] for row in rows if "processor_seconds" in row and "latency" in row]
    if not seconds:
        return ""
    mean = f"{sum(seconds) / len(seconds):.1f} s of the processor on average"
    return f"; of {len(seconds)} files that say it, {mean}, {max(seconds):.0f} s at most"


def _line(row: Row) -> tuple:
    name = row["name"].partition("/")[2]
    what = (
        (f"{row['bytes'] / 1e6:.1f}", row["opset"], row["nodes"], ", ".join(row["odd"]) or "-")
        if "bytes" in row
        else "----"
    )
    timed = row.get("latency", {}).get("smartmem")
    seconds = figure(sum(row["seconds"].values()) if "seconds" in row else None, "{:.1f}")
    counts = (figure(row.get("kernels"), "{}"), figure(row.get("layout_kernels"), "{}"))
    return (
        row["package"],
        name,
        *what,
        _result(row),
        *counts,
        seconds,
        figure(row.get("processor_seconds"), "{:.1f}"),
        figure(timed and timed["median"], "{:.2f}"),
        figure(ratio(row)),
    )


def _result(row: Row) -> str:
    if row["verdict"] != "right":
        return f"**{row['verdict']}**"
    if "exact" in row:
        return row["exact"]
    if row.get("reference_deviation"):
        return f"by rounding: ONNX Runtime is {row['reference_deviation']:.0e} from itself"
    return f"right, {row['deviation']:.0e}"


def _sentences(rows: Iterable[Row]) -> list[str]:
    said = [
        (row["name"], row["sentence"].replace("|", "\\|").replace("<", "&lt;")) for row in rows if "sentence" in row
    ]
    return ["### Files that are not right", table(("file", "what it said"), said)] if said else []


def _conditions(rows: Sequence[Row]) -> list[str]:
    found = places(rows, lambda row: f"{host(row['machine'])}; {versions(row['machine'])}")
    return [f"Measured on {'; and on '.join(found)}; {dates(rows)}."] if rows else []
