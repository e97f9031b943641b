# SPDX-License-Identifier: Apache-2.0
"""The table of docs/memory_plan.md of what resident_memory.py found."""

from __future__ import annotations

from collections.abc import Mapping

from rendering import content, table

RESULTS = "resident_memory.json"
TITLES = {
    "smartmem": "this package",
    "smartmem-half": "within half of the weights",
    "tvm": "TVM",
    "onnxruntime": "ONNX Runtime",
    "torch": "torch",
}


def figures() -> str:
    """MB of each system, the least of each network in bold, among those without a budget."""
    found: Mapping = content(RESULTS)
    lines = table(("network", *(f"{title}, MB" for title in TITLES.values())), map(_line, found["networks"]))
    made = f"{found['machine']['cpu']}, {found['machine']['cores']} threads, {found['date']}"
    return f"{lines}\n\nMedians of {found['rounds']} processes each; {made}."


def _line(row: Mapping) -> tuple:
    least = min(mb for system, mb in row["mb"].items() if system != "smartmem-half")
    cells = (row["mb"].get(system) for system in TITLES)
    return (row["name"], *("" if mb is None else f"**{mb:.0f}**" if mb == least else f"{mb:.0f}" for mb in cells))
