#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn the results of the OpenCL benchmarks into the tables of docs/opencl.md.

python benchmarks/opencl.py --into benchmarks/opencl_pocl.json          # measure: networks
python benchmarks/opencl.py --overhead --into benchmarks/opencl_pocl.json
python benchmarks/opencl_start.py --into benchmarks/opencl_pocl.json
python benchmarks/render_opencl.py                                      # write the tables
"""

from __future__ import annotations

import json
from pathlib import Path

from render import table

from smartmem_tvm.bench.results import write

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "opencl.md"
BEGIN, END = "<!-- opencl figures -->\n", "<!-- /opencl figures -->"
FILES = ("opencl_h100.json", "opencl_pocl.json")
OURS, TVM = "smartmem", "tvm"


def networks(results: list[dict]) -> str:
    """Kernels, times and errors of both pipelines."""
    titles = (
        "network",
        "kernels: ours / TVM's default",
        "latency, ms: ours / TVM's default",
        "error",
    )
    figures = (
        lambda s: str(s["kernels"]),
        lambda s: f"{s['latency_ms']['median']:.2f}",
        lambda s: f"{s['relative_error']:.1e}",
    )
    pairs = [(row["model"], row["systems"][OURS], row["systems"][TVM]) for row in results]
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


SECTIONS = {"networks": networks, "overhead": overhead, "start": start}


def page() -> str:
    """Every section of every device that was measured."""
    parts = []
    for name in FILES:
        if (HERE / name).exists():
            parts += _device(json.loads((HERE / name).read_text(encoding="utf-8")))
    return "\n\n".join(parts)


def _device(content: dict) -> list[str]:
    (first, *_) = content.values()
    device, machine = first["device"], first["machine"]
    dates = sorted({section["date"] for section in content.values()})
    where = (
        f"### {device['name']}\n\n{device['platform']}, driver {device['driver']}; {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['os']}; apache-tvm {machine['apache-tvm']}; {', '.join(dates)}."
    )
    return [where, *(render(content[name]["results"]) for name, render in SECTIONS.items() if name in content)]


def main() -> None:
    """Write the tables into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write(PAGE, f"{before}{BEGIN}{page()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
