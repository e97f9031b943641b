#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn the comparison with other compilers on the CPU into the tables of docs/cpu.md.

make bench-peers                       # measure, and write the tables
python benchmarks/render_peers.py      # write them from benchmarks/peers_1.json and peers_4.json
"""

from __future__ import annotations

from pathlib import Path

from render import table

from smartmem_tvm.bench.columns import geometric_mean, latency, ratio
from smartmem_tvm.bench.results import read, write_part
from smartmem_tvm.tables.suite import SUITES

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "cpu.md"
BEGIN, END = "<!-- peers -->\n", "<!-- /peers -->"
FILES = (HERE / "peers_1.json", HERE / "peers_4.json")
OURS, ORT = "smartmem", "onnxruntime"
TITLES = {
    OURS: "**ours, untuned**",
    ORT: "ONNX Runtime",
    "openvino": "OpenVINO f32",
    "iree": "IREE",
    "torch-compile": "torch.compile, freezing",
    "mnn": "MNN",
    "tvm-unscheduled": "TVM 0.27",
}

Row = dict


def rows_of(path: Path) -> list[Row]:
    """The rows of a result file, in the order of the suite."""
    rows = read(path)
    return [rows[entry.file] for entry in SUITES["peers"] if entry.file in rows]


def section(rows: list[Row]) -> str:
    """What was measured on one number of threads: milliseconds, ratios, errors, the conditions."""
    systems = [name for name in TITLES if any(name in row["systems"] for row in rows)]
    names = [row["name"] for row in rows]
    times = [(TITLES[name], *(_ms(row, name) for row in rows), _mean(rows, name)) for name in systems]
    errors = [(TITLES[name], *(_error(row, name) for row in rows)) for name in systems if name != ORT]
    threads = rows[0]["threads"]
    return "\n\n".join(
        (
            f"### {threads} thread{'s' if threads > 1 else ''}",
            table(("milliseconds", *names, "geometric mean of ours / this"), times),
            table(("ours as a multiple of", *names), [_against(rows, name) for name in systems if name != OURS]),
            table(("error against ONNX Runtime", *names), errors),
            "\n".join(_conditions(rows)),
        )
    )


def _ms(row: Row, system: str) -> str:
    value = latency(row["systems"].get(system, {}))
    return "-" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _ratio(row: Row, system: str) -> float | None:
    return ratio(row, latency, OURS, system)


def _mean(rows: list[Row], system: str) -> str:
    known = [value for value in (_ratio(row, system) for row in rows) if value is not None]
    return f"{geometric_mean(known):.2f}x" if len(known) == len(rows) and system != OURS else "-"


def _against(rows: list[Row], system: str) -> tuple[str, ...]:
    values = (_ratio(row, system) for row in rows)
    return (TITLES[system], *("-" if value is None else f"{value:.2f}x" for value in values))


def _error(row: Row, system: str) -> str:
    value = row["systems"].get(system, {}).get("relative_error")
    return "-" if value is None else f"{value:.1e}"


def _conditions(rows: list[Row]) -> list[str]:
    """A sentence for each machine, date and set of versions."""
    places: dict[str, list[str]] = {}
    for row in rows:
        machine = row["machine"]
        versions = [f"apache-tvm {machine['apache-tvm']}", f"onnxruntime {machine['onnxruntime']}"]
        versions += [facts["version"] for facts in row["systems"].values() if "version" in facts]
        text = (
            f"{machine['cpu']}, {machine['cores']} cores, {machine['os']}; {', '.join(versions)}; "
            f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}, runs taken in turns; {row['date']}"
        )
        places.setdefault(text, []).append(row["name"])
    return [f"Medians, measured on {text} ({', '.join(names)})." for text, names in places.items()]


def figures() -> str:
    """Everything between the markers."""
    return "\n\n".join(section(rows_of(path)) for path in FILES) + "\n"


def main() -> None:
    """Write the page."""
    write_part(PAGE, BEGIN, figures(), END)


if __name__ == "__main__":
    main()
