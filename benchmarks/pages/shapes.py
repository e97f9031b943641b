# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/cpu.md of single matmuls and convolutions, of what shapes.py measured."""

from __future__ import annotations

from collections.abc import Sequence

from rendering import PACKAGES, host, table, threads, versions
from shape_list import CONVOLUTIONS, MATMULS, Convolution, Matmul
from shape_systems import OPENBLAS, ORT, OURS, PEAK, TVM

from smartmem_tvm.tools.bench.columns import geometric_mean

RESULTS = "shapes.json"
PEERS = {"matmul, rows x depth x columns": (OPENBLAS, ORT, TVM), "convolution, channels first": (ORT, TVM)}
COMPARISONS = (
    ("matmuls", MATMULS, OPENBLAS),
    ("matmuls", MATMULS, ORT),
    ("convolutions", CONVOLUTIONS, ORT),
)


def peak(found: dict) -> float:
    """The best of the medians: a slow moment of the machine is not its peak."""
    return max(row[PEAK]["gflops"] for row in found["shapes"].values())


def page(results: dict) -> str:
    """Both tables, what they say in a sentence for each thread count, and where they were measured."""
    tables = [_table(results, title, shapes) for title, shapes in zip(PEERS, (MATMULS, CONVOLUTIONS), strict=True)]
    return "\n\n".join([*tables, *(_means(results, count) for count in results["threads"]), _where(results)])


def _table(results: dict, title: str, shapes: Sequence[Matmul | Convolution]) -> str:
    titles = [title, "from"]
    for count in results["threads"]:
        shown = " / ".join(["**ours**", *_peers(title, count)])
        titles += [f"GFLOP/s, {threads(count)}: {shown}", "ours, of the peak"]
    return table(titles, [_line(results, title, shape) for shape in shapes])


def _peers(title: str, count: str) -> list[str]:
    return [system for system in PEERS[title] if system != TVM or count == "1"]


def _line(results: dict, title: str, shape: Matmul | Convolution) -> list[str]:
    cells = [shape.name, shape.models]
    for count, found in results["threads"].items():
        row = found["shapes"][shape.name]
        others = (f"{row[system]['gflops']:.3g}" for system in _peers(title, count))
        cells += [" / ".join([f"**{row[OURS]['gflops']:.3g}**", *others]), f"{row[OURS]['gflops'] / peak(found):.0%}"]
    return cells


def _means(results: dict, count: str) -> str:
    found, ratios = results["threads"][count], []
    rows = found["shapes"]
    for what, shapes, system in COMPARISONS:
        mean = geometric_mean([rows[s.name][OURS]["gflops"] / rows[s.name][system]["gflops"] for s in shapes])
        ratios.append(f"{mean:.2f}x {system}'s rate on the {what}")
    figures = f"{', '.join(ratios)} (geometric means)"
    return f"{threads(count).capitalize()}, whose peak is {peak(found):.0f} GFLOP/s: {figures}."


def _where(results: dict) -> str:
    machine = results["machine"]
    cores = sorted({found["openblas_core"] for found in results["threads"].values()})
    return (
        f"Measured on {host(machine)}; {versions(machine, (*PACKAGES, 'numpy'))}, whose OpenBLAS runs its kernels for "
        f"{' and '.join(cores)}; {results['date']}."
    )
