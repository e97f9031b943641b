#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn benchmarks/accuracy*.json, which accuracy.py measured, into docs/accuracy.md."""

from __future__ import annotations

import json
from pathlib import Path

from render import table

from smartmem_tvm.bench.results import write
from smartmem_tvm.tables.suite import SMARTMEM18

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "accuracy.md"
_HEAD = """<!-- Written by benchmarks/render_accuracy.py from benchmarks/accuracy*.json. -->
# The same numbers as ONNX Runtime

The largest absolute error of any output, relative to the largest magnitude of that output, of every network of
SmartMem's Table 7 at its full size, on random inputs and with random weights. All compute in float32; 1e-4 is allowed.

    python benchmarks/accuracy.py                                    # the CPU and the first OpenCL device
    python benchmarks/accuracy.py --target cuda --into benchmarks/accuracy_h100.json
    python benchmarks/render_accuracy.py                             # write this page
"""


def sections() -> list[dict]:
    """What was measured: a target on a device each."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("accuracy*.json"))]
    return sorted((each for file in files for each in file.values()), key=lambda each: each["target"])


def page() -> str:
    """The whole page."""
    measured = sections()
    titles = ("network", *(f"{each['target']}, {each['device']}" for each in measured))
    lines = [(entry.name, *(_cell(each["networks"].get(entry.file)) for each in measured)) for entry in SMARTMEM18]
    return "\n".join((_HEAD, table(titles, lines), "", *map(_source, measured)))


def _cell(row: dict | None) -> str:
    if row is None:
        return "-"
    return f"{row['error']:.1e}" if "error" in row else row["failed"]


def _source(section: dict) -> str:
    here, rows = section["machine"], section["networks"].values()
    dates = ", ".join(sorted({row["date"] for row in rows}))
    minutes = sum(row["seconds"] for row in rows) / 60
    return (
        f"- {section['target']}, {section['device']}: {here['cpu']}, {here['cores']} cores, {here['os']}; "
        f"apache-tvm {here['apache-tvm']}, onnxruntime {here['onnxruntime']}; {dates}; {minutes:.0f} minutes of "
        "importing, compiling and running, one process for each network.\n"
    ).rstrip("\n") + "\n"


if __name__ == "__main__":
    write(PAGE, page())
