#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn the results of the OpenCL benchmarks into the tables of docs/opencl.md.

smartmem bench --suite gpu --target opencl --against tvm,onnxruntime -o benchmarks/pocl.json    # measure: networks
python benchmarks/opencl_launches.py --into benchmarks/opencl_pocl.json
python benchmarks/opencl_start.py --into benchmarks/opencl_pocl.json
python benchmarks/render_opencl.py                                                              # write the tables
"""

from __future__ import annotations

import json
from pathlib import Path

from render import table

from smartmem_tvm.bench.results import read, write_part

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "opencl.md"
BEGIN, END = "<!-- opencl figures -->\n", "<!-- /opencl figures -->"
FILES = {"opencl_h100.json": "h100.json", "opencl_pocl.json": "pocl.json"}
"""Launches and starts on a device -> what ``smartmem bench`` measured there, on OpenCL among others."""
OURS, TVM = "smartmem", "tvm"


def on_opencl(row: dict, system: str) -> dict:
    """What was measured of a system on OpenCL, which is not always the target of the whole row."""
    return row["systems"].get(system if row["target"] == "opencl" else f"{system}@opencl", {})


def networks(rows: list[dict]) -> str:
    """Kernels, times and errors of both pipelines."""
    titles = (
        "network",
        "kernels: ours / TVM's default",
        "latency, ms: ours / TVM's default",
        "error",
    )
    figures = (
        lambda s: str(s["kernels"]),
        lambda s: f"{s['latency_ms']['median']:.4g}",
        lambda s: f"{s['relative_error']:.1e}",
    )
    pairs = [(row["name"], on_opencl(row, OURS), on_opencl(row, TVM)) for row in rows]
    pairs = [each for each in pairs if all("latency_ms" in facts for facts in each[1:])]
    return table(titles, [(name, *(f"{f(ours)} / {f(tvm)}" for f in figures)) for name, ours, tvm in pairs])


def overhead(results: list[dict]) -> str:
    """Microseconds per launch of an empty kernel."""
    (found,) = results
    seconds = found["seconds"]
    theirs = min(value for name, value in seconds.items() if name.startswith("pyopencl"))
    lines = [(name, f"{each * 1e6:.2f}", f"{each / theirs:.2f}x") for name, each in seconds.items()]
    return table(("an empty kernel, launched by", "us per launch", "of pyopencl's faster way"), lines)


def start(results: list[dict]) -> str:
    """Seconds from the compiled model to its first result, in three processes."""
    titles = ("network", "process", "kernels compiled", "building, s", "first inference, s", "start in all, s")
    lines = []
    for row in results:
        for process in ("without a cache", "first process", "second process"):
            each = row[process]
            times = (f"{each[what]:.2f}" for what in ("build", "first", "start"))
            lines.append((row["model"], process, each["compiled"], *times))
    return table(titles, lines)


SECTIONS = {"overhead": overhead, "start": start}


def page() -> str:
    """Every section of every device that was measured."""
    parts = []
    for sections, rows in FILES.items():
        content = json.loads((HERE / sections).read_text(encoding="utf-8"))
        parts += _device(content, [row for row in read(HERE / rows).values() if "systems" in row])
    return "\n\n".join(parts)


def _device(content: dict, rows: list[dict]) -> list[str]:
    (first, *_) = content.values()
    device, machine = first["device"], first["machine"]
    dates = sorted({each["date"] for each in [*content.values(), *rows]})
    where = (
        f"### {device['name']}\n\n{device['platform']}, driver {device['driver']}; {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['os']}; apache-tvm {machine['apache-tvm']}; {', '.join(dates)}."
    )
    parts = (render(content[name]["results"]) for name, render in SECTIONS.items() if name in content)
    return [where, networks(rows), *parts]


def main() -> None:
    """Write the tables into the page."""
    write_part(PAGE, BEGIN, page() + "\n", END)


if __name__ == "__main__":
    main()
