# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/opencl.md, of networks, launches and starts on OpenCL devices (``make bench-opencl``)."""

from __future__ import annotations

from rendering import content, dates, host, rows, table

FILES = {"opencl_h100.json": "h100.json", "opencl_pocl.json": "pocl.json"}
"""Launches and starts on a device -> what ``smartmem bench`` measured there, on OpenCL among others."""
OURS, TVM = "smartmem", "tvm"


def on_opencl(row: dict, system: str) -> dict:
    """What was measured of a system on OpenCL, which is not always the target of the whole row."""
    return row["systems"].get(system if row["target"] == "opencl" else f"{system}@opencl", {})


def networks(measured: list[dict]) -> str:
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
    pairs = [(row["name"], on_opencl(row, OURS), on_opencl(row, TVM)) for row in measured]
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
    for sections, of_networks in FILES.items():
        parts += _device(content(sections), [row for row in rows(of_networks) if "systems" in row])
    return "\n\n".join(parts)


def _device(found: dict, measured: list[dict]) -> list[str]:
    (first, *_) = found.values()
    device, machine = first["device"], first["machine"]
    where = (
        f"### {device['name']}\n\n{device['platform']}, driver {device['driver']}; {host(machine)}; "
        f"apache-tvm {machine['apache-tvm']}; {dates([*found.values(), *measured])}."
    )
    parts = (make(found[name]["results"]) for name, make in SECTIONS.items() if name in found)
    return [where, networks(measured), *parts]
