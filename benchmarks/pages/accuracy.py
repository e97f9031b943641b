# SPDX-License-Identifier: Apache-2.0
"""The page docs/accuracy.md, of what accuracy.py measured."""

from __future__ import annotations

from rendering import HERE, content, dates, host, table, versions

from smartmem_tvm.tables.suite import SMARTMEM18

_HEAD = """<!-- Written by benchmarks/render.py from benchmarks/accuracy*.json. -->
# The same numbers as ONNX Runtime

This page is for those who want to know how exact results are. After it you know the error of each network of Table 7 on
each kind of device, and how to measure it.

The largest absolute error of any output, relative to the largest magnitude of that output, of every network of
SmartMem's Table 7 at its full size, on random inputs and with random weights. All compute in float32; 1e-4 is allowed.

    python benchmarks/accuracy.py                                    # the CPU and the first OpenCL device
    python benchmarks/accuracy.py --target cuda --into benchmarks/accuracy_h100.json
    python benchmarks/render.py accuracy                             # write this page
"""


def sections() -> list[dict]:
    """What was measured: a target on a device each."""
    files = [content(path.name) for path in sorted(HERE.glob("accuracy*.json"))]
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
    rows = section["networks"].values()
    minutes = sum(row["seconds"] for row in rows) / 60
    return (
        f"- {section['target']}, {section['device']}: {host(section['machine'])}; {versions(section['machine'])}; "
        f"{dates(rows)}; {minutes:.0f} minutes of importing, compiling and running, one process for each network.\n"
    )
