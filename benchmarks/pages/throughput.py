# SPDX-License-Identifier: Apache-2.0
"""The table of docs/cpu.md of several inferences at once, of what ``make bench-throughput`` measured."""

from __future__ import annotations

from rendering import HERE, facts, figure, host, places, table, threads, versions

from smartmem_tvm.tools.bench.columns import per_second
from smartmem_tvm.tools.bench.results import read

FILES = ("throughput_1.json", "throughput_2.json")
TITLES = {
    "smartmem": "**ours, untuned**",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO f32",
}
NAMES = {"swin_t": "Swin-T", "resnext50": "ResNeXt-50", "mobilenetv2": "MobileNetV2"}

Row = dict


def line(rows: list[Row], system: str) -> tuple[str, ...]:
    """A system on one number of streams: the rate and percentiles of each network."""
    return (f"{rows[0]['streams']}", TITLES[system], *(_cell(facts(row, system)) for row in rows))


def _cell(measured: dict) -> str:
    if per_second(measured) is None:
        return "-"
    times = " / ".join(figure(measured["throughput"][each], "{:.0f}") for each in ("p50", "p90", "p99"))
    return f"{per_second(measured):.1f} ({times})"


def _conditions(row: Row) -> str:
    requests = facts(row, "smartmem")["throughput"]["requests"]
    others = [each["version"] for each in row["systems"].values() if "version" in each]
    named = ", ".join([versions(row["machine"]), *others])
    return f"{requests} requests to each system on {threads(row['threads'])}, {host(row['machine'])}; {named}"


def page(measured: list[list[Row]]) -> str:
    """Inferences a second and percentiles, and how they were measured.

    Parameters
    ----------
    measured : list of list of dict
        The rows of each number of streams, the networks in the same order.
    """
    names = [NAMES[row["name"]] for row in measured[0]]
    lines = [line(rows, system) for rows in measured for system in TITLES]
    every = [row for rows in measured for row in rows]
    days = sorted({row["date"] for row in every})
    return "\n\n".join(
        (
            table(("streams", "inferences a second (p50 / p90 / p99 ms)", *names), lines),
            *(f"{text[0].upper()}{text[1:]}; {', '.join(days)}." for text in places(every, _conditions)),
        )
    )


def figures() -> str:
    """What is committed."""
    return page([list(read(HERE / name).values()) for name in FILES])
