#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn what was measured on an OpenCL device with textures into the tables of docs/textures.md.

smartmem bench --suite gpu --target opencl-texture --against ... -o benchmarks/textures.json    # `make bench-textures`
python benchmarks/render_textures.py                                                            # write the tables
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from render import table

from smartmem_tvm.analysis.family import FAMILIES
from smartmem_tvm.bench.columns import geometric_mean, latency, ratio
from smartmem_tvm.bench.launches import TEXTURE, paired
from smartmem_tvm.bench.results import failures, read, write_part
from smartmem_tvm.tables.suite import SUITES

HERE = Path(__file__).resolve().parent
PAGE, RESULTS = HERE.parent / "docs" / "textures.md", HERE / "textures.json"
BEGIN, END = "<!-- texture figures -->\n", "<!-- /texture figures -->"
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


def facts(row: dict, system: str) -> dict:
    """What is known of a system."""
    return row["systems"].get(system, {})


def best(row: dict) -> tuple[str, float] | None:
    """The fastest of TVM's, and its milliseconds."""
    known = [(name, each) for name in TVM if (each := latency(facts(row, name)))]
    return min(known, key=lambda each: each[1], default=None)


def latencies(rows: Sequence[dict]) -> str:
    """Milliseconds of every system, and how many times faster ours are."""
    lines = []
    for row in rows:
        times = (_text(latency(facts(row, name)), "{:.3f}") for name in TITLES)
        fastest = best(row)
        lines.append((row["name"], *times, *(_faster(row, ours, fastest) for ours in (TEXTURES, BUFFERS))))
    titles = ("ms", *TITLES.values(), "TVM's best over ours, textures", "the same, buffers")
    return "\n\n".join([table(titles, lines), table(("times faster", *TVM_TITLES, "its best"), _means(rows))])


TVM_TITLES = tuple(TITLES[name] for name in TVM)


def _faster(row: dict, ours: str, fastest: tuple[str, float] | None) -> str:
    own = latency(facts(row, ours))
    return _text(fastest[1] / own if own and fastest else None)


def _means(rows: Sequence[dict]) -> list[tuple[str, ...]]:
    """Geometric means of TVM's milliseconds over ours."""
    lines = []
    for ours in (TEXTURES, BUFFERS):
        for which, some in (
            ("transformers", [row for row in rows if row["model"] in TRANSFORMERS]),
            ("all networks", list(rows)),
        ):
            figures = [_mean([ratio(row, latency, name, ours) for row in some]) for name in TVM]
            owns = [(best(row), latency(facts(row, ours))) for row in some]
            figures.append(_mean([fastest[1] / own if fastest and own else None for fastest, own in owns]))
            lines.append((f"{TITLES[ours].strip('*')}, {which}", *figures))
    return lines


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value]
    return f"{geometric_mean(known):.2f}x of {len(known)}" if known else "-"


def kernels(rows: Sequence[dict]) -> str:
    """Kernels launched, the share of the time in those that only move data, and deviations."""
    lines = []
    for row in rows:
        cells = []
        for name in TITLES:
            each = facts(row, name)
            counts = f"{each['kernels']}, {each['layout_kernels']}" if "layout_kernels" in each else "-"
            share = _text(each.get("layout_share"), "{:.0%}")
            cells.append(f"{counts}, {share}, {_text(each.get('relative_error'), '{:.0e}')}")
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


def _text(value: float | None, form: str = "{:.2f}x") -> str:
    return "-" if value is None else form.format(value)


def where(rows: Sequence[dict]) -> str:
    """Device, machine, versions and dates."""
    machine = rows[0]["machine"]
    device = next(iter(machine["devices"].values()))
    versions = ", ".join(f"{name} {machine[name]}" for name in ("apache-tvm", "onnxruntime"))
    host = f"{machine['cpu']}, {machine['cores']} cores, {machine['os']}"
    dates = ", ".join(sorted({row["date"] for row in rows}))
    driver = device["driver"] or "unknown"
    return f"Measured on {device['name']}, {device['platform']}, driver {driver}; {host}; {versions}; {dates}."


def page(rows: Sequence[dict]) -> str:
    """All tables, what failed, and where it was measured."""
    shown = [row for row in rows if "systems" in row]
    failed = [f"- {row['name']}: {sentence}" for row in rows for sentence in failures(row)]
    there = {row["model"] for row in rows}
    failed += [f"- {entry.name}: not in this run." for entry in SUITES["gpu"] if entry.file not in there]
    parts = [latencies(shown), kernels(shown), families(shown)]
    return "\n\n".join([*parts, *(["Not measured:\n\n" + "\n".join(failed)] if failed else []), where(shown)])


def main() -> None:
    """Write the tables into the page."""
    write_part(PAGE, BEGIN, page(list(read(RESULTS).values())) + "\n", END)


if __name__ == "__main__":
    main()
