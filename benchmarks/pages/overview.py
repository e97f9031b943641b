# SPDX-License-Identifier: Apache-2.0
"""The tables of README.md, docs/figures.md, benchmarks/README.md: all networks, systems and techniques of the suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rendering import HERE, figure, mean_of_known, milliseconds, places, table, threads, versions

from smartmem_tvm.tables.suite import EXTRA, SMARTMEM18, Entry
from smartmem_tvm.tools.bench.columns import (
    ABLATION_TITLES,
    TITLES,
    ablation_cells,
    activations,
    cells,
    latency,
    ratio,
)

RESULTS, ABLATION = HERE / "smartmem18.json", HERE / "figure8.json"
SHORT = {
    "cswin_s": "vision transformer",
    "swin_t": "vision transformer",
    "vit_b16": "vision transformer",
    "sd_unet": "diffusion",
    "convnext_t": "convolutions",
    "bert_base": "language",
}
"""Networks of the README's table, and what they are."""
OURS, TVM, ORT, PLAIN = "smartmem", "tvm", "onnxruntime", "tvm-unscheduled"

Row = dict
Pair = tuple[Entry, Row]


def pairs(rows: dict[str, Row], entries: Iterable[Entry] = SMARTMEM18 + EXTRA[:1]) -> list[Pair]:
    """The entries that were measured, with their rows."""
    found = ((entry, rows.get(entry.file, {})) for entry in entries)
    return [(entry, row) for entry, row in found if "kernels" in row.get("systems", {}).get(OURS, {})]


def short(rows: dict[str, Row]) -> str:
    """The README's table: one network of each kind, and what a newcomer asks first."""
    titles = (
        "network",
        "kernels, of which only move data: TVM's default passes",
        "the same: smartmem_tvm",
        "bytes of activations moved, against TVM",
        "latency on a CPU, ms: smartmem_tvm / ONNX Runtime",
    )
    shown = pairs(rows, [entry for entry in SMARTMEM18 + EXTRA[:1] if entry.file in SHORT])
    return f"{table(titles, [_short_line(*pair) for pair in shown])}\n\n{_where(shown)}"


def _short_line(entry: Entry, row: Row) -> tuple[str, ...]:
    ours, theirs = row["systems"][OURS], row["systems"][TVM]
    return (
        f"{entry.name} ({SHORT[entry.file]})",
        f"{theirs['kernels']}, {theirs['layout_kernels']}",
        f"**{ours['kernels']}, {ours['layout_kernels']}**",
        figure(ratio(row, activations, OURS, TVM)),
        " / ".join(_ms(milliseconds(row, name)) for name in (OURS, ORT)),
    )


def overview(rows: dict[str, Row]) -> str:
    """The table of docs/figures.md: kernels, bytes, error, latency and memory of every network."""
    titles = (
        "network",
        "paper's kernels: TVM / DNNFusion / SmartMem",
        "TVM 0.27, of which layout",
        "ours, at most",
        "**ours, of which layout**",
        "attention fused / not",
        "activations moved, against TVM",
        "error",
        "latency, ms: ours / TVM's graph / ONNX Runtime",
        "peak memory, GB",
    )
    shown = pairs(rows)
    parts = [table(titles, [_overview_line(*pair) for pair in shown]), _remarks(shown), _moved(shown), _where(shown)]
    return "\n\n".join(part for part in parts if part)


def _overview_line(entry: Entry, row: Row) -> tuple[str, ...]:
    systems = row["systems"]
    ours, tvm = systems[OURS], systems.get(TVM, {})
    fused, unfused = systems.get("+fuse_attention", ours), systems.get("-fuse_attention", ours)
    moved = ratio(row, activations, OURS, TVM)
    memory = max(value for value in ours["peak_mb"].values() if value is not None)
    return (
        entry.name + ("*" if entry.remark else ""),
        " / ".join(map(str, entry.paper)) if entry.paper else "-",
        f"{tvm['kernels']}, {tvm['layout_kernels']}" if "kernels" in tvm else "-",
        str(entry.at_most),
        f"**{ours['kernels']}, {ours['layout_kernels']}**",
        f"{fused['kernels']} / {unfused['kernels']}" if fused is not unfused else "-",
        figure(moved),
        figure(ours.get("relative_error"), "{:.1e}"),
        " / ".join(_ms(milliseconds(row, name)) for name in (OURS, TVM, ORT)),
        f"{memory / 1e3:.1f}",
    )


def _ms(value: float | None) -> str:
    return figure(value, "{:.1f}" if value is not None and value < 100 else "{:.0f}")


def _remarks(shown: Sequence[Pair]) -> str:
    return "\n".join(f"\\* {entry.name}: {entry.remark}.  " for entry, _ in shown if entry.remark).rstrip()


def _moved(shown: Sequence[Pair]) -> str:
    """Geometric means against TVM's graph."""
    sentences = []
    for what, of in (("activations moved", activations), ("latency", latency)):
        for which, vision in (("the transformer and hybrid vision networks", True), ("all rows", False)):
            ratios = (ratio(row, of, OURS, TVM) for entry, row in shown if entry.vision or not vision)
            sentences.append(mean_of_known(ratios, f"{what} {{:.2f}}x on {which} ({{}})"))
    return f"Geometric means against TVM's graph: {'; '.join(filter(None, sentences))}." if any(sentences) else ""


def _where(shown: Sequence[Pair]) -> str:
    """The machines and dates, with the networks measured there if there are several."""
    found = places(({**row, "name": entry.name} for entry, row in shown), _place)
    if len(found) <= 1:
        return "".join(f"Measured on {text}." for text in found)
    return "\n".join(f"- {', '.join(names)}: measured on {text}." for text, names in found.items())


def _place(row: Row) -> str:
    machine = row["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['os']}"
    return f"{where}; {threads(row['threads'])}; {versions(machine)}, {row['date']}"


def details(rows: dict[str, Row]) -> str:
    """Every system of every network, as `smartmem bench` shows them."""
    return table(TITLES, (line for _, row in pairs(rows) for line in cells(row)))


def scaling(rows: dict[str, Row]) -> str:
    """Compile time of Swin-T with its blocks once, twice and four times, and what schedules are worth."""
    depths = [entry for entry in SMARTMEM18 + EXTRA if entry.file.split("/")[-1].startswith("swin_t")]
    lines = []
    for entry, row in pairs(rows, depths):
        ours = row["systems"][OURS]
        seconds, peak = ours["seconds"], ours["peak_mb"]["compile"]
        figures = (f"{seconds['passes']:.1f}", f"{seconds['codegen']:.1f}", f"{peak:.0f}")
        lines.append((entry.name, row["onnx_nodes"], ours["kernels"], *figures))
    titles = ("Swin-T, blocks", "ONNX nodes", "kernels", "our passes, s", "TVM's code generation, s", "peak memory, MB")
    swin = rows.get("swin_t", {})
    text, factor = table(titles, lines), ratio(swin, latency, PLAIN, OURS)
    if factor:
        plain = latency(swin["systems"][PLAIN])
        text += f"\n\nSwin-T as TVM compiles it without schedules: {plain:.0f} ms, {factor:.0f} times ours."
    return text


def page(rows: dict[str, Row], ablated: dict[str, Row]) -> str:
    """benchmarks/README.md."""
    parts = [PAGE, overview(rows), "## Every system", SYSTEMS, details(rows), "## Compile time", scaling(rows)]
    if ablated:
        steps = (line for row in ablated.values() if "ablation" in row for line in ablation_cells(row))
        parts += ["## What each technique brings", GAINS, table(ABLATION_TITLES, steps)]
    return "\n\n".join(parts) + "\n"


PAGE = """\
<!-- Written by render.py from smartmem18.json and figure8.json. -->
# The last full run

    make bench           # the small networks of SmartMem's Table 7, BERT, and compile time
    make bench-large     # SD-UNet and Pythia-1B, one system after the other: up to 20 GB of memory
    make bench-ablation  # the picture

Each writes its result file here, one network at a time, goes on where it was interrupted, and then writes this page
and the tables of the README and of docs/figures.md. Kernels are launches counted while the virtual machine runs;
activations moved are the bytes read and written at kernel boundaries; the error is the largest deviation from ONNX
Runtime relative to the largest output; peak memory is the resident set of a process that holds only this system
(compiling, then running)."""
SYSTEMS = """\
`tvm` is TVM's importer and its five default passes with our schedules, so that the latency shows what the graph is
worth; `tvm-unscheduled` is the same as TVM's code generator compiles it. `-fuse_attention` is ours without that
technique, counted but not run. Latencies are medians, with the 10th and 90th percentile."""
GAINS = """\
![kernels, bytes and latency, technique by technique](figure8.png)

As SmartMem's Figure 8, for the same eight networks: all techniques off, then on again one by one. The schedules are the
same all along. Single cells of ms and faster may be off by up to a factor of two, as the machines are shared ones:
AutoFormer-S has 168.2 ms and then 91.5 with the same 544 kernels. What is robust are kernels, bytes, and what several
steps and networks agree on."""
