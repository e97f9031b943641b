# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/cpu.md that compare with other compilers, of what ``make bench-peers`` measured."""

from __future__ import annotations

from rendering import HERE, facts, figure, host, milliseconds, places, table, threads, versions

from smartmem_tvm.tables.suite import SUITES
from smartmem_tvm.tools.bench.columns import geometric_mean, latency, ratio
from smartmem_tvm.tools.bench.results import read

FILES = ("peers_1.json", "peers_4.json")
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


def rows_of(name: str) -> list[Row]:
    """The rows of a result file, in the order of the suite."""
    rows = read(HERE / name)
    return [rows[entry.file] for entry in SUITES["peers"] if entry.file in rows]


def section(rows: list[Row]) -> str:
    """What was measured on one number of threads: milliseconds, ratios, errors, the conditions."""
    systems = [name for name in TITLES if any(name in row["systems"] for row in rows)]
    names = [row["name"] for row in rows]
    times = [(TITLES[name], *(_ms(row, name) for row in rows), _mean(rows, name)) for name in systems]
    errors = [(TITLES[name], *(_error(row, name) for row in rows)) for name in systems if name != ORT]
    return "\n\n".join(
        (
            f"### {threads(rows[0]['threads'])}",
            table(("milliseconds", *names, "geometric mean of ours / this"), times),
            table(("ours as a multiple of", *names), [_against(rows, name) for name in systems if name != OURS]),
            table(("error against ONNX Runtime", *names), errors),
            "\n".join(_conditions(rows)),
        )
    )


def _ms(row: Row, system: str) -> str:
    value = milliseconds(row, system)
    return figure(value, "{:.1f}" if value is not None and value < 1000 else "{:.0f}")


def _ratio(row: Row, system: str) -> float | None:
    return ratio(row, latency, OURS, system)


def _mean(rows: list[Row], system: str) -> str:
    known = [value for value in (_ratio(row, system) for row in rows) if value is not None]
    return f"{geometric_mean(known):.2f}x" if len(known) == len(rows) and system != OURS else "-"


def _against(rows: list[Row], system: str) -> tuple[str, ...]:
    return (TITLES[system], *(figure(_ratio(row, system)) for row in rows))


def _error(row: Row, system: str) -> str:
    return figure(facts(row, system).get("relative_error"), "{:.1e}")


def _conditions(rows: list[Row]) -> list[str]:
    """A sentence for each machine, date and set of versions."""
    found = places(rows, _conditions_of)
    return [f"Medians, measured on {text} ({', '.join(names)})." for text, names in found.items()]


def _conditions_of(row: Row) -> str:
    others = [each["version"] for each in row["systems"].values() if "version" in each]
    named = ", ".join([versions(row["machine"]), *others])
    return f"{host(row['machine'])}; {named}; {threads(row['threads'])}, runs taken in turns; {row['date']}"


def figures() -> str:
    """What was measured on each number of threads."""
    return "\n\n".join(section(rows_of(name)) for name in FILES)
