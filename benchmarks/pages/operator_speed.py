# SPDX-License-Identifier: Apache-2.0
"""The part of docs/audit.md on single operators, of what operator_speed.py measured."""

from __future__ import annotations

from operator_speed import RESULTS
from rendering import content, dates, figure, mean_of_known, table, versions

_TITLES = ("operator", "ONNX Runtime, us", "ours, us", "ours / ONNX Runtime", "rules")


def figures() -> str:
    """A line for each, the slowest first, and the mean."""
    found = content(RESULTS.name)
    rows = sorted(found["rows"].items(), key=lambda each: -_ratio(each[1]))
    here = found["machine"]
    return "\n\n".join(
        (
            table(_TITLES, [_line(name, row) for name, row in rows]),
            f"{len(rows)} cases: geometric mean {mean_of_known([_ratio(row) for _, row in rows], '{:.2f}x')}.",
            f"{here['cpu']}, one thread, {here['os']}; {versions(here)}; {dates(found['rows'].values())}.",
        )
    )


def _ratio(row: dict) -> float:
    return row["microseconds"]["ours"] / row["microseconds"]["onnxruntime"]


def _line(name: str, row: dict) -> tuple:
    theirs, ours = (figure(row["microseconds"][system], "{:.0f}") for system in ("onnxruntime", "ours"))
    return name, theirs, ours, figure(_ratio(row)), "; ".join(row["rules"])
