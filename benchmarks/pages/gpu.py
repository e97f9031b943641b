# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/gpu.md, of what ``make bench-gpu`` measured on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence

from rendering import dates, facts, figure, host, mean_of_known, milliseconds, not_measured, table, versions

from smartmem_tvm.tools.bench.columns import latency, per_graph, ratio

RESULTS = "h100.json"
OURS, OPENCL = "smartmem", "smartmem@opencl"
TITLES = {
    OURS: "**ours, CUDA graphs**",
    "no-cuda-graph": "ours, CUDA",
    OPENCL: "ours, OpenCL",
    "tvm": "TVM, CUDA",
    "tvm@opencl": "TVM, OpenCL",
    "torch-eager": "torch eager",
    "torch-compile": "compile",
    "torch-cuda-graphs": "reduce-overhead",
    "torch-max-autotune": "max-autotune",
}
"""System -> its heading."""
TORCH = tuple(name for name in TITLES if name.startswith("torch-"))
AGAINST = ",".join([*list(TITLES)[1:], "onnxruntime"])
"""What ``make bench-gpu`` measures beside ours."""


def best_of_torch(row: dict) -> float | None:
    """Milliseconds of torch's fastest mode."""
    return min((each for name in TORCH if (each := milliseconds(row, name))), default=None)


def against_torch(row: dict) -> float | None:
    """Our milliseconds over those of torch's fastest mode."""
    ours, best = milliseconds(row, OURS), best_of_torch(row)
    return ours / best if ours and best else None


def latencies(rows: Sequence[dict]) -> str:
    """Milliseconds of every system, and the two ratios that count."""
    lines = []
    for row in rows:
        times = (figure(milliseconds(row, name), "{:.3f}") for name in TITLES)
        factors = (against_torch(row), ratio(row, latency, OPENCL, OURS))
        lines.append((row["name"], *times, *map(figure, factors)))
    titles = ("ms", *TITLES.values(), "ours / torch's best", "ours, OpenCL / CUDA")
    mean = "Geometric mean of ours over torch's best mode, {1} networks: {0:.2f}x."
    return "\n\n".join(filter(None, (table(titles, lines), mean_of_known(map(against_torch, rows), mean))))


def kernels(rows: Sequence[dict]) -> str:
    """Kernels, those in CUDA graphs, and deviations."""
    lines = []
    for row in rows:
        ours, tvm = (facts(row, name) for name in (OURS, "tvm"))
        counts = " / ".join(figure(each.get("kernels"), "{}") for each in (ours, tvm))
        graphs = per_graph(ours["kernels_per_graph"]) if "kernels_per_graph" in ours else "-"
        groups = ((OURS, "no-cuda-graph"), (OPENCL,), ("tvm", "tvm@opencl"), TORCH)
        errors = (figure(_worst(row, names), "{:.1e}") for names in groups)
        lines.append((row["name"], counts, graphs, *errors))
    titles = ("network", "kernels: ours / TVM", "in CUDA graphs", "error: ours, CUDA", "ours, OpenCL", "TVM", "torch")
    return table(titles, lines)


def _worst(row: dict, names: Sequence[str]) -> float | None:
    known = (facts(row, name).get("relative_error") for name in names)
    return max((each for each in known if each is not None), default=None)


def where(rows: Sequence[dict]) -> str:
    """Device, machine, versions and dates."""
    machine = rows[0]["machine"]
    devices = [
        f"{target}: {each['name']}, {each['platform']}, driver {each['driver'] or 'unknown'}"
        for target, each in machine["devices"].items()
    ]
    others = sorted({each["version"] for row in rows for each in row["systems"].values() if "version" in each})
    named = ", ".join([versions(machine), *others])
    return f"Measured on {'; '.join(devices)}; {host(machine)}; {named}; {dates(rows)}."


def page(rows: Sequence[dict]) -> str:
    """Both tables, what failed, and where it was measured."""
    shown = [row for row in rows if "systems" in row]
    return "\n\n".join([latencies(shown), kernels(shown), *not_measured(rows), where(shown)])
