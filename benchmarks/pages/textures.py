# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/textures.md, of what ``make bench-textures`` measured on an OpenCL device with textures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rendering import dates, facts, figure, host, mean_of_known, milliseconds, not_measured, table, versions

from smartmem_tvm.analysis.family import FAMILIES
from smartmem_tvm.tables.suite import SUITES
from smartmem_tvm.tools.bench.columns import geometric_mean, latency, ratio
from smartmem_tvm.tools.bench.kernel_families import TEXTURE, paired

RESULTS = "textures.json"
TEXTURES, BUFFERS = "smartmem", "smartmem@opencl"
TITLES = {
    TEXTURES: "**ours, textures**",
    BUFFERS: "**ours, buffers**",
    "tvm@opencl": "TVM's default",
    "tvm-textures": "TVM, textures",
    "tvm-textures-matmul": "TVM, textures and Matmul",
}
"""System -> its heading."""
TVM = tuple(name for name in TITLES if name.startswith("tvm"))
AGAINST = ",".join([*list(TITLES)[1:], "onnxruntime"])
"""What ``make bench-textures`` measures beside ours."""
TRANSFORMERS = ("swin_t", "vit_b16", "bert_base")


def best(row: dict) -> tuple[str, float] | None:
    """The fastest of TVM's, and its milliseconds."""
    known = [(name, each) for name in TVM if (each := milliseconds(row, name))]
    return min(known, key=lambda each: each[1], default=None)


def latencies(rows: Sequence[dict]) -> str:
    """Milliseconds of every system, and how many times faster ours are."""
    lines = []
    for row in rows:
        times = (figure(milliseconds(row, name), "{:.3f}") for name in TITLES)
        fastest = best(row)
        lines.append((row["name"], *times, *(_faster(row, ours, fastest) for ours in (TEXTURES, BUFFERS))))
    titles = ("ms", *TITLES.values(), "TVM's best over ours, textures", "the same, buffers")
    return "\n\n".join([table(titles, lines), table(("times faster", *TVM_TITLES, "its best"), _means(rows))])


TVM_TITLES = tuple(TITLES[name] for name in TVM)


def _faster(row: dict, ours: str, fastest: tuple[str, float] | None) -> str:
    own = milliseconds(row, ours)
    return figure(fastest[1] / own if own and fastest else None)


def _means(rows: Sequence[dict]) -> list[tuple[str, ...]]:
    """Geometric means of TVM's milliseconds over ours."""
    lines = []
    for ours in (TEXTURES, BUFFERS):
        for which, some in (
            ("transformers", [row for row in rows if row["model"] in TRANSFORMERS]),
            ("all networks", list(rows)),
        ):
            figures = [_mean([ratio(row, latency, name, ours) for row in some]) for name in TVM]
            owns = [(best(row), milliseconds(row, ours)) for row in some]
            figures.append(_mean([fastest[1] / own if fastest and own else None for fastest, own in owns]))
            lines.append((f"{TITLES[ours].strip('*')}, {which}", *figures))
    return lines


def _mean(values: Iterable[float | None]) -> str:
    return mean_of_known(values, "{:.2f}x of {}") or "-"


def kernels(rows: Sequence[dict]) -> str:
    """Kernels launched, the share of the time in those that only move data, and deviations."""
    lines = []
    for row in rows:
        cells = []
        for name in TITLES:
            each = facts(row, name)
            counts = f"{each['kernels']}, {each['layout_kernels']}" if "layout_kernels" in each else "-"
            share = figure(each.get("layout_share"), "{:.0%}")
            cells.append(f"{counts}, {share}, {figure(each.get('relative_error'), '{:.0e}')}")
        lines.append((row["name"], *cells))
    return table(("launches, of which layout, share of time, error", *TITLES.values()), lines)


def families(rows: Sequence[dict]) -> str:
    """Each kernel of ours with textures beside the same one with buffers, by family."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        for family, found in paired(row["systems"], TEXTURES, BUFFERS).items():
            ratios.setdefault(family, []).extend(found)
    lines = [
        (name, len(ratios[name]), f"{geometric_mean(ratios[name]):.2f}x", sum(each < 1 for each in ratios[name]))
        for name in FAMILIES
        if name in ratios
    ]
    touched = (
        f"{row['name']} {sum(f'/{TEXTURE}/' in key for key in each)} of {len(each)}"
        for row in rows
        if (each := facts(row, TEXTURES).get("launch_us"))
    )
    titles = ("family", "kernels with textures", "texture over buffer", "faster with textures")
    return f"{table(titles, lines)}\n\nKernels that read or write textures: {', '.join(touched)}."


def where(rows: Sequence[dict]) -> str:
    """Device, machine, versions and dates."""
    machine = rows[0]["machine"]
    device = next(iter(machine["devices"].values()))
    named = f"{device['name']}, {device['platform']}, driver {device['driver'] or 'unknown'}"
    return f"Measured on {named}; {host(machine)}; {versions(machine)}; {dates(rows)}."


def page(rows: Sequence[dict]) -> str:
    """All tables, what failed, and where it was measured."""
    shown = [row for row in rows if "systems" in row]
    there = {row["model"] for row in rows}
    left_out = [f"{entry.name}: not in this run." for entry in SUITES["gpu"] if entry.file not in there]
    parts = [latencies(shown), kernels(shown), families(shown), *not_measured(rows, left_out), where(shown)]
    return "\n\n".join(parts)
