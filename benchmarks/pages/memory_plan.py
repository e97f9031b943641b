# SPDX-License-Identifier: Apache-2.0
"""The table of docs/memory_plan.md, of what memory_plan.py found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rendering import content, table

RESULTS = "memory_plan.json"
TITLES = ("network", "target", "launches", "tensors", "least possible, MB", "ours", "TVM's", "TVM's allocations")


def figures() -> str:
    """Bytes of both plans over the least possible, and how many allocations that are."""
    rows: Sequence[Mapping] = content(RESULTS)
    return table(TITLES, map(_line, sorted(rows, key=lambda row: (row["name"].lower(), row["target"]))))


def _line(row: Mapping) -> tuple:
    ours, theirs = (f"{row[plan]['bytes'] / row['live_bytes']:.3f}x" for plan in ("ours", "tvm"))
    least = f"{row['live_bytes'] / 1e6:.2f}"
    known = (row["name"], f"`{row['target']}`", row["steps"], row["tensors"])
    return (*known, least, f"**{ours}**", theirs, row["tvm"]["allocations"])
