# SPDX-License-Identifier: Apache-2.0
"""The table of docs/cpu.md on register tiles for AArch64, of what aarch64_tiles.py found."""

from __future__ import annotations

from aarch64_tiles import RESULTS
from rendering import content, table

TITLES = ("processor", "all products", "worst product", "tile chosen for 3136 x 768", "fastest tile")


def page() -> str:
    """The table, and where its numbers come from."""
    found = content(RESULTS.name)
    lines = [
        (
            row["processor"],
            f"{row['mean']:.3f}x",
            f"{row['worst']['ratio']:.2f}x ({row['worst']['product']})",
            *(f"{_tile(row[which])}" for which in ("chosen", "fastest")),
        )
        for row in found["rows"]
    ]
    condition = f"`llvm-mca` {found['llvm']}, {found['rows'][0]['products']} products; {found['date']}."
    return f"{table(TITLES, lines)}\n\n{condition}"


def _tile(entry: dict) -> str:
    """Its size, and the multiply-adds of a cycle."""
    height, width = entry["tile"]
    return f"{height} x {width}: {height * width / entry['cycles']:.1f} in a cycle"
