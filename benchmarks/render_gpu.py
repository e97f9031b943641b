#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn what was measured on a CUDA device into the tables of docs/gpu.md.

smartmem bench --suite gpu --target cuda --against no-cuda-graph,... -o benchmarks/h100.json    # `make bench-gpu`
python benchmarks/render_gpu.py                                                                 # write the tables
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from render import table

from smartmem_tvm.bench.columns import geometric_mean, latency, per_graph, ratio
from smartmem_tvm.bench.results import failures, read, write_part

HERE = Path(__file__).resolve().parent
PAGE, RESULTS = HERE.parent / "docs" / "gpu.md", HERE / "h100.json"
BEGIN, END = "<!-- gpu figures -->\n", "<!-- /gpu figures -->"
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
    return min((each for name in TORCH if (each := latency(row["systems"].get(name, {})))), default=None)


def against_torch(row: dict) -> float | None:
    """Our milliseconds over those of torch's fastest mode."""
    ours, best = latency(row["systems"].get(OURS, {})), best_of_torch(row)
    return ours / best if ours and best else None


def latencies(rows: Sequence[dict]) -> str:
    """Milliseconds of every system, and the two ratios that count."""
    lines = []
    for row in rows:
        times = (latency(row["systems"].get(name, {})) for name in TITLES)
        factors = (against_torch(row), ratio(row, latency, OPENCL, OURS))
        lines.append((row["name"], *(_text(each, "{:.3f}") for each in times), *(_text(each) for each in factors)))
    titles = ("ms", *TITLES.values(), "ours / torch's best", "ours, OpenCL / CUDA")
    return "\n\n".join(each for each in (table(titles, lines), _means(rows)) if each)


def _means(rows: Sequence[dict]) -> str:
    known = [each for row in rows if (each := against_torch(row))]
    if not known:
        return ""
    return f"Geometric mean of ours over torch's best mode, {len(known)} networks: {geometric_mean(known):.2f}x."


def kernels(rows: Sequence[dict]) -> str:
    """Kernels, those in CUDA graphs, and deviations."""
    lines = []
    for row in rows:
        ours, tvm = (row["systems"].get(name, {}) for name in (OURS, "tvm"))
        counts = " / ".join(_text(facts.get("kernels"), "{}") for facts in (ours, tvm))
        graphs = per_graph(ours["kernels_per_graph"]) if "kernels_per_graph" in ours else "-"
        groups = ((OURS, "no-cuda-graph"), (OPENCL,), ("tvm", "tvm@opencl"), TORCH)
        errors = (_text(_worst(row, names), "{:.1e}") for names in groups)
        lines.append((row["name"], counts, graphs, *errors))
    titles = ("network", "kernels: ours / TVM", "in CUDA graphs", "error: ours, CUDA", "ours, OpenCL", "TVM", "torch")
    return table(titles, lines)


def _worst(row: dict, names: Sequence[str]) -> float | None:
    known = (row["systems"].get(name, {}).get("relative_error") for name in names)
    return max((each for each in known if each is not None), default=None)


def _text(value: float | None, form: str = "{:.2f}x") -> str:
    return "-" if value is None else form.format(value)


def where(rows: Sequence[dict]) -> str:
    """Device, machine, versions and dates."""
    machine = rows[0]["machine"]
    devices = [
        f"{target}: {facts['name']}, {facts['platform']}, driver {facts['driver'] or 'unknown'}"
        for target, facts in machine["devices"].items()
    ]
    versions = [f"{name} {machine[name]}" for name in ("apache-tvm", "onnxruntime")]
    versions += sorted({facts["version"] for row in rows for facts in row["systems"].values() if "version" in facts})
    dates = ", ".join(sorted({row["date"] for row in rows}))
    host = f"{machine['cpu']}, {machine['cores']} cores, {machine['os']}"
    return f"Measured on {'; '.join(devices)}; {host}; {', '.join(versions)}; {dates}."


def page(rows: Sequence[dict]) -> str:
    """Both tables, what failed, and where it was measured."""
    shown = [row for row in rows if "systems" in row]
    failed = [f"- {row['name']}: {sentence}" for row in rows for sentence in failures(row)]
    parts = [latencies(shown), kernels(shown), *(["Not measured:\n\n" + "\n".join(failed)] if failed else [])]
    return "\n\n".join([*parts, where(shown)])


def main() -> None:
    """Write the tables into the page."""
    write_part(PAGE, BEGIN, page(list(read(RESULTS).values())) + "\n", END)


if __name__ == "__main__":
    main()
